"""`Metrics`: the registry of one process and its text, and the listener that serves it without a key.

Each process has a registry of its own, not the library's global one, so that tests can make several.
"""

import socket
import threading
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from server.metrics.samples import gauge

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_CONNECTIONS = 8
"""Connections of the metrics listener at a time; more are closed."""
CONNECTION_SECONDS = 10.0
"""How long a connection of the metrics listener may be silent."""

disable_created_metrics()  # type: ignore[no-untyped-call]  # a switch of the library: no series with the time of each counter's first value


class Metrics:
    """The registry, with the series of the process and of Python."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self._rendering = threading.Lock()

    def add(self, *collectors: Collector) -> None:
        """Registers collectors. Raises ValueError for a series that exists."""
        for collector in collectors:
            self.registry.register(collector)

    def render(self) -> bytes:
        """All series in Prometheus' text format. Any thread, one at a time."""
        with self._rendering:
            return generate_latest(self.registry)


class BuildInfo(Collector):
    """`holdfast_build_info`: what this process is, as labels of a 1."""

    def __init__(self, **labels: str) -> None:
        self._labels = labels

    def collect(self) -> list[Metric]:
        return [gauge("holdfast_build_info", "What this process is: always 1.", 1, self._labels)]

    def describe(self) -> list[Metric]:
        """None, so that registering this does not collect."""
        return []


class MetricsListener:
    """Answers GET /metrics on a socket of its own, without a key, on threads of its own."""

    def __init__(self, listening: socket.socket, metrics: Metrics) -> None:
        """`listening` is a bound, listening socket, which this owns from now on."""
        self._server = _Server(listening, metrics)
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Closes the socket; answers that are under way are not waited for. Idempotent."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, listening: socket.socket, metrics: Metrics) -> None:
        super().__init__(listening.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.metrics = metrics
        self._free = threading.Semaphore(MAX_CONNECTIONS)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away or is too slow concerns nobody."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = CONNECTION_SECONDS
    server_version = "holdfast"
    sys_version = ""

    def do_GET(self) -> None:
        """The series at /metrics; 404 elsewhere."""
        found = self.path.partition("?")[0].rstrip("/") == "/metrics"
        body = self.server.metrics.render() if found else b"The metrics are at /metrics.\n"
        self.send_response(HTTPStatus.OK if found else HTTPStatus.NOT_FOUND)
        self.send_header("content-type", CONTENT_TYPE)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        """Nothing: scrapes are not logged."""
