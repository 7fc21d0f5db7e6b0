"""Holdfast's own CPU time: of a token and of a create, before a remote engine.

The engine is a fake vLLM of 100 tokens/s a stream. It, Postgres and the clients share the machine and are not
counted.
"""

import os
import statistics
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from bench.clients import Capture, read_streams
from bench.rounds import divide, tell
from tests.support.engine_process import EngineServerProcess
from tests.support.server_process import MODEL, ServerProcess

STREAMS = 32
TOKENS = 500
STEP_SECONDS = 0.01
ROUNDS = 3
CREATES = 100
"""By each thread."""
CREATORS = 4
MOST_US = {1: 1000, 8: 300, STREAMS: 150}
"""CPU time of a token, by the number of streams."""
MOST_CREATE_US = 2500
LEAST_RATIO = 1.8
_TICKS = os.sysconf("SC_CLK_TCK")


def run() -> None:
    """CPU µs a token at 1, 8 and 32 streams and a create, everything stored; two processes ÷ one."""
    engine = EngineServerProcess(length=2 * TOKENS, step_seconds=STEP_SECONDS)
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        Path(folder).chmod(0o711)
        settings = {"engine": "vllm", "engine_url": engine.url, "data_dir": f"{folder}/data"}
        servers = [ServerProcess(settings=settings, module=("server",)) for _ in range(2)]
        try:
            engine.start()
            for server in servers:
                server.start()
            _compare(servers)
        finally:
            for server in reversed(servers):
                server.stop()
            engine.stop()


def _compare(servers: Sequence[ServerProcess]) -> None:
    """Both processes run all the time; one without streams costs next to nothing and is not counted."""
    costs: dict[str, list[float]] = {}
    for turn in range(-1, ROUNDS):
        found = {
            **{f"{streams}": _of_token(servers[:1], streams, turn) for streams in MOST_US},
            "half": _of_token(servers[:1], STREAMS // 2, turn),
            "two": _of_token(servers, STREAMS // 2, turn),
            "create": _of_create(servers[0], turn),
        }
        for name, cost in found.items() if turn >= 0 else ():
            costs.setdefault(name, []).append(cost)
    for streams, most in MOST_US.items():
        tell(f"CPU µs a token of one process, {streams} streams", costs[f"{streams}"], f"<={most}")
    tell("CPU µs a create with an answer of one token", costs["create"], f"<={MOST_CREATE_US}")
    # Threads of Python compute one at a time, so a process is full at one core, and two at two. The ratio is
    # of these ceilings, with as many streams in each process as in the one: on a machine of few cores the
    # engine and the clients would be full first.
    ratios = divide([2 * cost for cost in costs["half"]], costs["two"])
    tell("tokens/s that two processes could take ÷ one", ratios, f">={LEAST_RATIO}")
    ceiling = 1e6 / statistics.median(costs[f"{STREAMS}"])
    print(f"  one process could take {ceiling:.0f} tokens/s on a core of its own")


def _of_token(servers: Sequence[ServerProcess], streams: int, turn: int) -> float:
    """CPU µs of these servers for a token, while each has so many streams."""
    captures: list[Capture] = []

    def read() -> None:
        readers = [
            threading.Thread(target=lambda port=server.port: captures.extend(_stream(port, streams, turn)))
            for server in servers
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()

    spent = _microseconds(servers, read)
    assert len(captures) == streams * len(servers)
    return spent / (len(captures) * TOKENS)


def _of_create(server: ServerProcess, turn: int) -> float:
    """CPU µs of a stored response of one token, created and answered without a stream."""

    def create(creator: int) -> None:
        with httpx.Client() as client:
            for number in range(CREATES):
                body = {"model": MODEL, "input": f"{turn} {creator} {number} go on", "max_output_tokens": 1}
                client.post(f"{server.api}/responses", json=body, timeout=60).raise_for_status()

    with ThreadPoolExecutor(CREATORS) as pool:
        return _microseconds([server], lambda: list(pool.map(create, range(CREATORS)))) / (CREATES * CREATORS)


def _microseconds(servers: Sequence[ServerProcess], act: Callable[[], object]) -> float:
    before = sum(map(_cpu_seconds, servers))
    act()
    return 1e6 * (sum(map(_cpu_seconds, servers)) - before)


def _stream(port: int, streams: int, turn: int) -> list[Capture]:
    bodies = [
        {"model": MODEL, "input": f"{turn} {n} go on", "stream": True, "max_output_tokens": TOKENS}
        for n in range(streams)
    ]
    captures = read_streams(port, bodies)
    assert all(f'"output_tokens":{TOKENS},'.encode() in capture.raw for capture in captures)
    return captures


def _cpu_seconds(server: ServerProcess) -> float:
    """User and system time of the process itself, without its children."""
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
