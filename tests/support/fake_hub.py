"""A Hugging Face hub on loopback: `/api/models/.../revision`, `/tree`, and `/resolve`, with ranges.

What `huggingface_hub` asks of a hub: https://huggingface.co/docs/hub/api.
"""

import hashlib
import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" + 34 * "0"


class FakeHub:
    """Serves files by repository and name while its block runs."""

    def __init__(
        self,
        models: Mapping[str, Mapping[str, bytes]],
        *,
        gated: tuple[str, ...] = (),
        cut_after: int = 0,
        claimed_sizes: Mapping[str, int] | None = None,
    ) -> None:
        """`gated` repositories want a token; after `cut_after` bytes of a file's first answer the connection
        ends; `claimed_sizes` are what the hub says of files, by name.
        """
        self.models = models
        self.gated = gated
        self.cut_after = cut_after
        self.claimed_sizes = claimed_sizes or {}
        self.downloads: list[tuple[str, str | None]] = []
        """Each file that was sent: its name, and the range that was asked for."""
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.hub = self
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "FakeHub":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    hub: FakeHub


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        is_api = path.startswith("/api/models/")
        owner, name, *rest = path.removeprefix("/api/models/" if is_api else "/").split("/")
        hub, repository = self.server.hub, f"{owner}/{name}"
        if repository not in hub.models:
            self._refuse(404, "RepoNotFound")
        elif repository in hub.gated and "authorization" not in self.headers:
            self._refuse(401, "GatedRepo")
        elif rest[1:] and rest[1] not in ("main", COMMIT):
            self._refuse(404, "RevisionNotFound")
        elif is_api:
            self._send(json.dumps(self._described(repository, is_tree=rest[:1] == ["tree"])).encode())
        elif (file := "/".join(rest[2:])) in hub.models[repository]:
            self._send_file(file, hub.models[repository][file])
        else:
            self._refuse(404, "EntryNotFound")

    def _described(self, repository: str, *, is_tree: bool) -> object:
        files = self.server.hub.models[repository]
        if not is_tree:
            return {"id": repository, "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}
        return [
            {"type": "file", "path": name, "size": self._size(name, content), "oid": _digest(content)}
            for name, content in files.items()
        ]

    def _size(self, name: str, content: bytes) -> int:
        return self.server.hub.claimed_sizes.get(name, len(content))

    def _send_file(self, name: str, content: bytes) -> None:
        headers = {"etag": f'"{_digest(content)}"', "x-repo-commit": COMMIT, "accept-ranges": "bytes"}
        hub, wanted = self.server.hub, self.headers["range"]
        if self.command == "HEAD":
            self._send(b"", 200, headers, size=self._size(name, content))
            return
        hub.downloads.append((name, wanted))
        if not wanted:
            is_cut = 0 < hub.cut_after < len(content)
            self._send(content[: hub.cut_after] if is_cut else content, 200, headers, size=len(content))
            self.close_connection = self.close_connection or is_cut
            return
        begin = int(wanted.removeprefix("bytes=").partition("-")[0])
        headers["content-range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
        self._send(content[begin:], 206, headers)

    def _refuse(self, status: int, code: str) -> None:
        self._send(b"{}", status, {"x-error-code": code})

    def _send(
        self,
        body: bytes,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        size: int | None = None,
    ) -> None:
        self.send_response(status)
        for name, value in {"content-type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body) if size is None else size))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


def _digest(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()
