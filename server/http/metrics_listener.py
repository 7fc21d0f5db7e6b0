"""MetricsListener: serves GET /metrics without a key, on a thread and an event loop of its own.

It answers while the server's own event loop is busy, and its connections are bounded as the server's are.
"""

import asyncio
import socket
import threading
from collections.abc import Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from server.configuration.settings import Config
from server.http.asgi.endpoint import PublicEndpoint
from server.http.asgi.hypercorn_patches import install_patches
from server.http.asgi.listener import Listener, hypercorn_settings, metrics_connection_limit, raise_file_limit

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Prometheus' text format."""


class MetricsListener:
    def __init__(self, listening: socket.socket, render: Callable[[], bytes], config: Config) -> None:
        """`listening` is a bound, listening socket, which this owns from now on; `render` gives the text."""
        install_patches()
        listening.setblocking(False)
        self._listening = listening
        self._ended = asyncio.Event()
        self._runner = asyncio.Runner()
        settings = hypercorn_settings(config)
        settings.graceful_timeout = 0.0
        limit = metrics_connection_limit(config.max_connections, raise_file_limit())
        self._listener = Listener(_application(render), settings, limit, send_seconds=config.send_seconds)
        self._thread = threading.Thread(target=self._serve, name="metrics", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Closes the socket; answers that are under way are not waited for. Idempotent."""
        if self._thread.is_alive():
            self._runner.get_loop().call_soon_threadsafe(self._ended.set)
            self._thread.join()
        self._listening.close()

    def _serve(self) -> None:
        with self._runner:
            self._runner.run(self._listener.serve(self._listening, self._ended.wait))


def _application(render: Callable[[], bytes]) -> Starlette:
    def answer(_request: Request) -> Response:
        return Response(render(), headers={"content-type": CONTENT_TYPE})

    endpoint = PublicEndpoint(answer, None)
    app = Starlette(routes=[Route(path, endpoint, methods=["GET"]) for path in ("/metrics", "/metrics/")])
    app.router.redirect_slashes = False
    return app
