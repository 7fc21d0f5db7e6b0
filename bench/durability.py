"""What strict durability costs: streams of a strict server against those of a normal one, in turns."""

import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple

import psycopg

from bench.clients import Capture, read_streams
from bench.rounds import divide, tell
from server.embedded_postgres.embedded_server import EmbeddedPostgres
from server.store.schema.upgrade import upgrade
from tests.support.server_process import MODEL, ServerProcess

Durability = Literal["strict", "normal"]
BOTH: Sequence[Durability] = ("strict", "normal")

SLOW_FLUSH_MS = 5
SLOW_DISK: Mapping[str, int] = {"commit_delay": SLOW_FLUSH_MS * 1000, "commit_siblings": 0}
"""Postgres waits so long before it flushes for a commit; it needs `fsync`."""
MOST_ADDED_MS = 2.0
"""To the first token, besides one flush."""


class Load(NamedTuple):
    """Clients that send their next request when their last one has ended."""

    step_seconds: float
    tokens: int
    """Of an answer, on average."""
    requests: Mapping[int, int]
    """How many requests each client sends, by number of clients."""


LOADS = (Load(0.01, 64, {1: 6, 8: 4, 32: 3}), Load(0.08, 40, {256: 2}))
"""A stream has 100 tokens/s, or 12 where there are 256: two thirds of what two cores serve."""
ROUNDS = 4
COMMITS = 20
"""How many commits a flush is measured with, before each round."""


class Round(NamedTuple):
    """Measurements of one round on one server."""

    rate: float
    """Tokens per second of all streams."""
    first_ms: Sequence[float]
    """From each request to its first token, without the first request of each client."""
    gap_ms: Sequence[float]
    """Between two deltas of a stream."""


def run() -> None:
    """Strict ÷ normal tokens/s, and ms added to the first token, on this disk and on one that takes 5 ms."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        Path(folder).chmod(0o711)
        with EmbeddedPostgres(Path(folder, "cluster")) as cluster:
            for disk, settings in (("this disk", {}), (f"{SLOW_FLUSH_MS} ms more", SLOW_DISK)):
                for load in LOADS:
                    _compare(cluster, disk, settings, load)


def _compare(cluster: EmbeddedPostgres, disk: str, settings: Mapping[str, int], load: Load) -> None:
    with ExitStack() as stack:
        servers = {
            durability: stack.enter_context(_running(cluster, settings, durability, load))
            for durability in BOTH
        }
        for streams, requests in load.requests.items():
            lengths = [load.tokens // 2 + 7 * number % load.tokens for number in range(streams * requests)]
            rounds: dict[Durability, list[Round]] = {durability: [] for durability in BOTH}
            flushes: list[float] = []
            for turn in range(ROUNDS):
                flushes += _flushes(cluster.url_of("normal"))
                for durability in BOTH if turn % 2 else reversed(BOTH):
                    rounds[durability].append(_measure(servers[durability], streams, lengths))
            _tell(f"{disk}, {streams} streams", rounds, statistics.median(flushes))


def _flushes(url: str) -> list[float]:
    """Milliseconds by which a commit that waits for the disk takes longer than one that does not."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create table if not exists flushed (number int)")

        def commit(durability: str) -> float:
            connection.execute(f"set synchronous_commit = {durability}")
            start = time.monotonic()
            connection.execute("insert into flushed values (1)")
            return 1000 * (time.monotonic() - start)

        return [commit("on") - commit("off") for _ in range(COMMITS)]


@contextmanager
def _running(
    cluster: EmbeddedPostgres, settings: Mapping[str, int], durability: Durability, load: Load
) -> Iterator[ServerProcess]:
    """A server with a database of its own in the cluster, which has answered before."""
    with psycopg.connect(cluster.url_of("postgres"), autocommit=True) as administrator:
        assert administrator.execute("show fsync").fetchone() == ("on",)
        administrator.execute(f"drop database if exists {durability} with (force)")
        administrator.execute(f"create database {durability}")
        for name, value in settings.items():
            administrator.execute(f"alter database {durability} set {name} = {value}")
    upgrade(cluster.url_of(durability))
    paced = {
        "engine": "scripted",
        "scripted_tokens": 100_000,
        "scripted_step_seconds": load.step_seconds,
        "max_running": 512,
        "max_waiting": 512,
        "durability": durability,
    }
    server = ServerProcess(cluster.url_of(durability), settings=paced, module=("server",))
    try:
        server.start()
        read_streams(server.port, [_body(load.tokens)] * 8)
        yield server
    finally:
        server.stop()


def _measure(server: ServerProcess, streams: int, lengths: Sequence[int]) -> Round:
    start = time.monotonic()
    captures = read_streams(server.port, list(map(_body, lengths)), at_once=streams)
    seconds = time.monotonic() - start
    for capture, length in zip(captures, lengths, strict=True):
        assert f'"output_tokens":{length},'.encode() in capture.raw, capture.raw[-500:]
    later = sorted(captures, key=lambda capture: capture.sent_at)[streams:]
    deltas = [(capture, _deltas(capture)) for capture in later]
    return Round(
        rate=sum(lengths) / seconds,
        first_ms=[1000 * (times[0] - capture.sent_at) for capture, times in deltas],
        gap_ms=[1000 * (two - one) for _, times in deltas for one, two in pairwise(times)],
    )


def _body(tokens: int) -> Mapping[str, object]:
    return {"model": MODEL, "input": "Count to 125", "stream": True, "max_output_tokens": tokens}


def _deltas(capture: Capture) -> list[float]:
    """When deltas came; those that came together count as one."""
    return sorted({moment for moment, event in capture.events() if event["type"].endswith(".delta")})


def _tell(name: str, rounds: Mapping[Durability, Sequence[Round]], flush_ms: float) -> None:
    firsts: dict[Durability, float] = {}
    for durability, measured in rounds.items():
        rate = statistics.median(each.rate for each in measured)
        firsts[durability] = statistics.median(first for each in measured for first in each.first_ms)
        gap = statistics.median(gap for each in measured for gap in each.gap_ms)
        print(
            f"  {name}, {durability}: {rate:.0f} tokens/s, first token after {firsts[durability]:.1f} ms,"
            f" a delta every {gap:.1f} ms"
        )
    strict, normal = ([each.rate for each in rounds[durability]] for durability in BOTH)
    tell(f"{name}: tokens/s, strict ÷ normal", divide(strict, normal), ">=0.97")
    print(f"  {name}: a flush takes {flush_ms:.1f} ms")
    added = firsts["strict"] - firsts["normal"]
    tell(f"{name}: ms added to the first token", [added], f"<={flush_ms + MOST_ADDED_MS:.1f}")
