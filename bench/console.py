"""The console's pages at 1,000,000 responses: their time, that of the database, what streams lose by them.

BENCH_RESPONSES is how many there are in the place of the million, BENCH_CALLS how often a page is asked for
in the place of 50; BENCH_DATABASE_URL names a database that `bench.generated_rows` has filled already.
"""

import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlencode

import httpx
import psycopg

from bench.admin_sql import QUICK
from bench.clients import read_streams
from bench.generated_rows import fill
from bench.rounds import divide, tell
from server.embedded_postgres.embedded_server import EmbeddedPostgres
from server.protocol.ids import response_id
from server.store import database_roles
from server.store.schema.upgrade import upgrade
from tests.support.server_process import MODEL, ServerProcess, run_command

RESPONSES = int(os.environ.get("BENCH_RESPONSES", "1000000"))
CALLS = int(os.environ.get("BENCH_CALLS", "50"))
STREAMS = 32
TOKENS = 500
ROUNDS = 6
PAUSE_S = 0.5
"""Between two pages that are asked for beside streams whose tokens are counted: somebody who clicks fast."""
MOST_MS = 200.0
MOST_DATABASE_MS = 50.0
PACED: Mapping[str, object] = {
    "engine": "scripted",
    "scripted_tokens": 100_000,
    "scripted_step_seconds": 0.01,
    "access_log": "off",
}
HISTORY: Mapping[str, Mapping[str, str]] = {
    "history": {},
    "history, all time": {"period": "all"},
    "history of a tenant": {"tenant": "acme", "period": "all"},
    "history of a user": {"user": "user-42", "period": "all"},
    "history of nobody": {"user": "nobody", "period": "all"},
    "history by metadata": {"q": "team=red", "period": "all"},
    "history by rare metadata": {"q": "team=none", "period": "all"},
    "history, failed": {"status": "failed", "period": "all"},
    "history by a code": {"error": "server_error", "period": "all"},
    "history by a model": {"model": "gpt-oss-20b", "period": "all"},
    "history by a key": {"key": "key-tenant-19", "period": "all"},
    "history by words": {"q": "lorem"},
    "history, words without hits": {"q": "xyzzy"},
}
OTHERS: Mapping[str, str] = {
    "usage": "/console/usage",
    "usage, 90 days by key": "/console/usage?period=90&by=key",
    "usage, 7 days by user": "/console/usage?period=7&by=user",
    "live": "/console/live",
}


def run() -> None:
    """Pages of the console: p95 within 200 ms, 50 ms of the database; streams beside them ÷ alone >= 0.98."""
    with ExitStack() as stack:
        url = os.environ.get("BENCH_DATABASE_URL") or stack.enter_context(_filled())
        key = _make_key(url)
        server = ServerProcess(url, settings=PACED)
        stack.callback(server.stop)
        server.start()
        client = stack.enter_context(_client(server.port, key))
        pages = _pages(url)
        alone = {name: _ask(client, path) for name, path in pages.items()}
        busy = {name: _busy_ms(url, server.pid, client, path) for name, path in pages.items()}
        with _streams_running(server.port, key):
            beside = {name: _ask(client, path) for name, path in pages.items()}
        _tell_pages(alone, busy, beside)
        _compare_streams(server.port, key, list(pages.values()))


@contextmanager
def _filled() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        Path(folder).chmod(0o711)
        with EmbeddedPostgres(Path(folder) / "data", options=QUICK) as postgres:
            upgrade(postgres.url)
            database_roles.create_roles(postgres.url)
            began = time.monotonic()
            fill(postgres.url, RESPONSES)
            print(f"  {RESPONSES} responses in {time.monotonic() - began:.0f} s", flush=True)
            yield postgres.url


def _make_key(url: str) -> str:
    made = run_command("keys", "create", "--tenant", "acme", "--scopes", "read,write,admin", database_url=url)
    assert made.returncode == 0, made.stderr
    return made.stdout.split()[-1]


def _client(port: int, key: str) -> httpx.Client:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60)


def _pages(url: str) -> dict[str, str]:
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute("select id from responses order by turn desc limit 1").fetchone()
    assert found is not None
    histories = {name: f"/console/history?{urlencode(arguments)}" for name, arguments in HISTORY.items()}
    return {**histories, "a response": f"/console/responses/{response_id(found[0])}", **OTHERS}


def _ask(client: httpx.Client, path: str) -> list[float]:
    """Milliseconds of each call, after a first one that is not counted."""
    times = []
    for _ in range(CALLS + 1):
        began = time.perf_counter()
        client.get(path).raise_for_status()
        times.append((time.perf_counter() - began) * 1000)
    return sorted(times[1:])


def _busy_ms(url: str, server: int, client: httpx.Client, path: str) -> tuple[float, float]:
    """Milliseconds that the server and the database compute for a call, whatever else they do included."""
    with psycopg.connect(url, autocommit=True) as connection:
        query = "select pid from pg_stat_activity where backend_type = 'client backend'"
        sessions = [pid for (pid,) in connection.execute(query).fetchall()]
    began = _cpu_ms(server), sum(map(_cpu_ms, sessions))
    for _ in range(CALLS):
        client.get(path).raise_for_status()
    return (_cpu_ms(server) - began[0]) / CALLS, (sum(map(_cpu_ms, sessions)) - began[1]) / CALLS


def _cpu_ms(process: int) -> float:
    """What a process has computed until now; Linux counts nanoseconds. 0 for one that has ended."""
    threads = Path(f"/proc/{process}/task").glob("*/schedstat")
    try:
        return sum(int(thread.read_text(encoding="ascii").split()[0]) for thread in threads) / 1e6
    except FileNotFoundError:
        return 0.0


@contextmanager
def _streams_running(port: int, key: str) -> Iterator[None]:
    """Streams, read by a process of its own, until the block ends."""
    with _process(_stream, port, key, 100_000):
        time.sleep(2)
        yield


@contextmanager
def _process(work: Callable[..., object], *arguments: object) -> Iterator[None]:
    process = multiprocessing.get_context("spawn").Process(target=work, args=arguments, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.terminate()
        process.join()


def _stream(port: int, key: str, tokens: int) -> float:
    """Tokens a second of all streams together."""
    body = {"model": MODEL, "input": "Count", "stream": True, "max_output_tokens": tokens}
    began = time.monotonic()
    captures = read_streams(port, [body] * STREAMS, key=key)
    seconds = max(capture.pieces[-1][0] for capture in captures) - began
    return STREAMS * tokens / seconds


def _click(port: int, key: str, paths: list[str]) -> None:
    """Asks for one page after the other, for ever."""
    with _client(port, key) as client:
        while True:
            for path in paths:
                client.get(path).raise_for_status()
                time.sleep(PAUSE_S)


def _compare_streams(port: int, key: str, paths: list[str]) -> None:
    rates: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(ROUNDS):
        for asked in (False, True) if turn % 2 else (True, False):
            with ExitStack() as stack:
                if asked:
                    stack.enter_context(_process(_click, port, key, paths))
                    time.sleep(1)
                rates[asked].append(_stream(port, key, TOKENS))
    tell(f"tokens/s of {STREAMS} streams, console asked ÷ not", divide(rates[True], rates[False]), ">=0.98")


def _tell_pages(
    alone: Mapping[str, list[float]],
    busy: Mapping[str, tuple[float, float]],
    beside: Mapping[str, list[float]],
) -> None:
    """Milliseconds of each page: its time alone and beside streams, and what is computed for it."""
    print(f"  {'page':32} {'p50':>7} {'p95':>7} {'beside, p95':>12} {'server':>7} {'database':>9}")
    for name, times in alone.items():
        server, database = busy[name]
        missed = max(_p95(times), _p95(beside[name])) > MOST_MS or database > MOST_DATABASE_MS
        print(
            f"  {name:32} {statistics.median(times):7.1f} {_p95(times):7.1f} {_p95(beside[name]):12.1f}"
            f" {server:7.1f} {database:9.1f}{'  missed' if missed else ''}",
            flush=True,
        )


def _p95(times: list[float]) -> float:
    return times[int(0.95 * len(times))]
