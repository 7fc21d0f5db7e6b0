"""A web server with fixed pages on this machine, for what the server fetches."""

import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import NamedTuple


class Page(NamedTuple):
    body: bytes
    media_type: str
    status: int = 200
    location: str | None = None


class WebServer:
    """Serves the pages by path while its block runs; `requests` are the paths that were asked for."""

    def __init__(self, pages: Mapping[str, Page]) -> None:
        self.pages = dict(pages)
        pages = self.pages
        self.requests: list[str] = []
        requests = self.requests

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                requests.append(self.path)
                page = pages.get(self.path, Page(b"", "text/plain", 404))
                self.send_response(page.status)
                self.send_header("content-type", page.media_type)
                self.send_header("content-length", str(len(page.body)))
                if page.location is not None:
                    self.send_header("location", page.location)
                self.end_headers()
                self.wfile.write(page.body)

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "WebServer":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
