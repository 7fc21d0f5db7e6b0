"""What watching and bounding cost: streams with logs, traces and limits against streams without, in turns."""

import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx

from bench.clients import Capture, read_streams
from bench.rounds import divide, tell
from tests.support.otlp_collector import running_collector
from tests.support.server_process import MODEL, ServerProcess, run_command

CONCURRENT = 32
TOKENS = 300
ROUNDS = 8
PACED: Mapping[str, object] = {
    "engine": "scripted",
    "scripted_tokens": 100_000,
    "scripted_step_seconds": 0.004,
}
QUIET: Mapping[str, object] = {"access_log": "off", "log_level": "warning"}
WATCHED: Mapping[str, object] = {"access_log": "on", "log_format": "json"}
LIMITED = ("--rpm", "1000000", "--tpm", "1000000000000", "--budget-tokens", "1000000000000")
OPEN_STREAMS = 1000
SCRAPES = 20
MOST_SCRAPE_MS = 20.0


def run() -> None:
    """Tokens/s and CPU with everything on ÷ nothing but metrics; a scrape beside 1,000 open streams."""
    with ExitStack() as stack:
        plain = stack.enter_context(_running(QUIET, ()))
        collector = stack.enter_context(running_collector())
        with _environment(
            OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
            OTEL_TRACES_SAMPLER="parentbased_traceidratio",
            OTEL_TRACES_SAMPLER_ARG="0.01",
        ):
            full = stack.enter_context(_running(WATCHED, LIMITED))
        _compare(plain, full)
    _scrape()


class _Keyed:
    """A server with a key."""

    def __init__(self, server: ServerProcess, key: str) -> None:
        self.server = server
        self.key = key

    def stream(self, streams: int, tokens: int) -> list[Capture]:
        body = {"model": MODEL, "input": "Count to 125", "stream": True, "max_output_tokens": tokens}
        return read_streams(self.server.port, [body] * streams, key=self.key)

    def cpu_seconds(self) -> float:
        """Of the server's process alone, without its database."""
        fields = Path(f"/proc/{self.server.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _running(settings: Mapping[str, object], limits: tuple[str, ...]) -> Iterator[_Keyed]:
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        Path(folder).chmod(0o711)
        given = {"data_dir": f"{folder}/data", **PACED, "max_running": 2048, "max_waiting": 2048, **settings}
        server = ServerProcess(settings=given, module=("server",))
        server.start()
        try:
            made = run_command("keys", "create", *limits, data_dir=f"{folder}/data")
            yield _Keyed(server, made.stdout.strip())
        finally:
            server.stop()


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]


def _compare(plain: _Keyed, full: _Keyed) -> None:
    rates: dict[_Keyed, list[float]] = {plain: [], full: []}
    costs: dict[_Keyed, list[float]] = {plain: [], full: []}
    for turn in range(-1, ROUNDS):
        for keyed in (plain, full) if turn % 2 else (full, plain):
            start, spent = time.monotonic(), keyed.cpu_seconds()
            keyed.stream(CONCURRENT, TOKENS)
            if turn >= 0:
                rates[keyed].append(CONCURRENT * TOKENS / (time.monotonic() - start))
                costs[keyed].append(keyed.cpu_seconds() - spent)
    print(f"  without: {statistics.median(rates[plain]):.0f} tokens/s")
    print(f"  with logs, traces of 1 %, limits and a budget: {statistics.median(rates[full]):.0f} tokens/s")
    tell("tokens/s, with ÷ without", divide(rates[full], rates[plain]), ">=0.98")
    tell("CPU, without ÷ with", divide(costs[plain], costs[full]), ">=0.98")


def _scrape() -> None:
    """Milliseconds of GET /metrics, and its size, while streams are open that say something now and then."""
    with _running({**QUIET, "scripted_step_seconds": 1.0}, ("--scopes", "read,write,metrics")) as keyed:
        headers = {"Authorization": f"Bearer {keyed.key}"}
        with (
            httpx.Client(base_url=keyed.server.url, headers=headers, timeout=30) as client,
            ExitStack() as stack,
        ):
            body = {"model": MODEL, "input": "Hello", "stream": True}
            limits = httpx.Limits(max_connections=None)
            readers = stack.enter_context(httpx.Client(headers=headers, timeout=60, limits=limits))
            for _ in range(OPEN_STREAMS):
                stream = readers.stream("POST", f"{keyed.server.api}/responses", json=body)
                assert stack.enter_context(stream).status_code == 200
            taken, size = [], 0
            for _ in range(SCRAPES):
                start = time.monotonic()
                size = len(client.get("/metrics").raise_for_status().content)
                taken.append((time.monotonic() - start) * 1000)
            print(f"  {size} bytes beside {OPEN_STREAMS} streams")
    tell("a scrape, ms", taken, f"<={MOST_SCRAPE_MS:g}")
