"""The metrics listener: nothing but metrics, and clients that never finish a request keep nobody out."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from server.configuration.settings import Config
from server.http.metrics_listener import MetricsListener
from server.metrics.families import Metrics

LIMIT = 32


@pytest.fixture
def url() -> Iterator[str]:
    listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
    listener = MetricsListener(listening, Metrics().render, Config(max_connections=LIMIT))
    listener.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}/metrics"
    listener.stop()
    listener.stop()


def test_the_listener_serves_metrics_and_nothing_else(url: str) -> None:
    assert "process_cpu_seconds_total" in httpx.get(url).text
    assert httpx.get(f"{url}?name=x").status_code == httpx.get(f"{url}/").status_code == 200
    assert httpx.get(url.replace("/metrics", "/other")).status_code == 404
    assert httpx.post(url).status_code == 405


@pytest.mark.parametrize(
    "sent", [b"", b"GET /metrics HTTP/1.1\r\nx: ", b"GET /metrics HTTP/1.1\r\n\r\n" * 50]
)
def test_clients_that_neither_finish_nor_read_keep_no_scrape_waiting(url: str, sent: bytes) -> None:
    host, _, port = url.removeprefix("http://").removesuffix("/metrics").partition(":")
    with ExitStack() as stack:
        for _ in range(6 * LIMIT):
            stack.enter_context(socket.create_connection((host, int(port)))).sendall(sent)
        for _ in range(3):
            assert httpx.get(url).status_code == 200
