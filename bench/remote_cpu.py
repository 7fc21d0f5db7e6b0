"""What a token from a remote engine costs: CPU time of Holdfast, on a fake vLLM of 100 tokens/s a stream.

The fake engine, Postgres and the clients share the machine and are not counted.
"""

import os
import statistics
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from bench.clients import Capture, read_streams
from bench.rounds import divide, tell
from tests.support.engine_process import EngineServerProcess
from tests.support.server_process import MODEL, ServerProcess

STREAMS = 32
TOKENS = 500
STEP_SECONDS = 0.01
ROUNDS = 3
MOST_US = 60
LEAST_RATIO = 1.8
_TICKS = os.sysconf("SC_CLK_TCK")


def run() -> None:
    """CPU µs a token at 32 streams, everything stored; what two processes could take ÷ one."""
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
    costs: dict[str, list[float]] = {"full": [], "one": [], "two": []}
    for turn in range(-1, ROUNDS):
        for name, used, streams in (
            ("full", servers[:1], STREAMS),
            ("one", servers[:1], STREAMS // 2),
            ("two", servers, STREAMS // 2),
        ):
            cost = _microseconds(used, streams, turn)
            if turn >= 0:
                costs[name].append(cost)
    tell(f"CPU µs a token of one process, {STREAMS} streams", costs["full"], f"<={MOST_US}")
    # Threads of Python compute one at a time, so a process is full at one core, and two at two. The ratio is
    # of these ceilings, with as many streams in each process as in the one: on a machine of few cores the
    # engine and the clients would be full first.
    ratios = divide([2 * cost for cost in costs["one"]], costs["two"])
    tell("tokens/s that two processes could take ÷ one", ratios, f">={LEAST_RATIO}")
    print(
        f"  one process could take {1e6 / statistics.median(costs['full']):.0f} tokens/s on a core of its own"
    )


def _microseconds(servers: Sequence[ServerProcess], streams: int, turn: int) -> float:
    """CPU time of these servers for a token, while each has so many streams."""
    before = sum(map(_cpu_seconds, servers))
    captures: list[Capture] = []
    readers = [
        threading.Thread(target=lambda port=server.port: captures.extend(_stream(port, streams, turn)))
        for server in servers
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert len(captures) == streams * len(servers)
    return 1e6 * (sum(map(_cpu_seconds, servers)) - before) / (len(captures) * TOKENS)


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
