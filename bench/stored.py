"""What storing costs: streams that are stored against streams that are not, on one server, in turns."""

import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tokenizers import Tokenizer

from bench.clients import Capture, read_streams
from bench.rounds import divide, tell
from server.configuration.shipped_files import demo_model_folder
from tests.support.server_process import MODEL, ServerProcess

CONCURRENT = 32
TOKENS_PER_SECOND = 10_000
PACED: Mapping[str, object] = {
    "engine": "scripted",
    "scripted_tokens": 100_000,
    "scripted_step_seconds": CONCURRENT / TOKENS_PER_SECOND,
}
MOST_ADDED_MS = 10.0
LATENCY_STREAMS = 8
LATENCY_STEP_SECONDS = 0.02

Times = dict[bool, list[float]]
"""By whether the streams were stored."""


def run() -> None:
    """Stored ÷ unstored streamed tokens per second, 32 at once; what commit before send adds to latency."""
    _compare("scripted engine at 10,000 tokens/s", PACED, tokens=1000, rounds=6, goal=">=0.95")
    _compare("demo model", {}, tokens=400, rounds=6, goal=">=0.97")
    _added_latency()


def _compare(name: str, settings: Mapping[str, object], *, tokens: int, rounds: int, goal: str) -> None:
    rates: Times = {True: [], False: []}
    with running(settings) as server:
        for turn in range(-2, rounds):
            for stored in (True, False) if turn % 2 else (False, True):
                start = time.monotonic()
                _stream(server, CONCURRENT, tokens, stored=stored)
                if turn >= 0:
                    rates[stored].append(CONCURRENT * tokens / (time.monotonic() - start))
    for stored, found in rates.items():
        print(f"  {name}, {'stored' if stored else 'not stored'}: {statistics.median(found):.0f} tokens/s")
    tell(f"{name}: stored ÷ not stored", divide(rates[True], rates[False]), goal)


def _added_latency() -> None:
    latencies: Times = {True: [], False: []}
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        log = Path(folder, "given.json")
        settings = {**PACED, "scripted_step_seconds": LATENCY_STEP_SECONDS}
        captures: dict[bool, list[Capture]] = {True: [], False: []}
        with running(settings, ("bench.timed_server", str(log))) as server:
            for turn in range(-1, 6):
                for stored in (True, False) if turn % 2 else (False, True):
                    found = _stream(server, LATENCY_STREAMS, 100, stored=stored)
                    captures[stored] += found if turn >= 0 else []
            server.ask_to_end()
            server.wait()
        given = _given(log)
    for stored, found in captures.items():
        latencies[stored] = [late for capture in found for late in _latencies(capture, given)]
        p50, p99 = (statistics.quantiles(latencies[stored], n=100)[place] for place in (49, 98))
        told = "stored" if stored else "not stored"
        print(f"  from the engine to the client, {told}: p50 {p50 * 1000:.1f} ms, p99 {p99 * 1000:.1f} ms")
    added = statistics.median(latencies[True]) - statistics.median(latencies[False])
    tell("added by commit before send, ms at p50", [added * 1000], f"<={MOST_ADDED_MS:g}")


@contextmanager
def running(settings: Mapping[str, object], module: tuple[str, ...] = ("server",)) -> Iterator[ServerProcess]:
    """A server with an embedded database of its own."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        Path(folder).chmod(0o711)
        server = ServerProcess(settings={"data_dir": f"{folder}/data", **settings}, module=module)
        server.start()
        try:
            yield server
        finally:
            server.stop()


def _stream(server: ServerProcess, streams: int, tokens: int, *, stored: bool) -> list[Capture]:
    # A prompt that asks for more than there may be: no stream ends before the others.
    body = {"model": MODEL, "input": "Count to 125", "stream": True, "max_output_tokens": tokens}
    captures = read_streams(server.port, [{**body, "store": stored}] * streams)
    for capture in captures:
        assert f'"output_tokens":{tokens},'.encode() in capture.raw, capture.raw[-500:]
    return captures


def _given(log: Path) -> dict[str, list[tuple[float, int]]]:
    """By engine request, when each of its tokens was given and how long its text is."""
    tokenizer = Tokenizer.from_file(str(demo_model_folder() / "tokenizer.json"))
    given: dict[str, list[tuple[float, int]]] = {}
    for moment, engine_request, token_ids in json.loads(log.read_text(encoding="utf-8")):
        texts = (tokenizer.decode([token_id]) for token_id in token_ids)
        given.setdefault(engine_request, []).extend((moment, len(text)) for text in texts)
    return given


def _latencies(capture: Capture, given: Mapping[str, list[tuple[float, int]]]) -> list[float]:
    """How long after each token's delivery all of its text had come."""
    events = capture.events()
    arrived: list[float] = []
    """By character of the answer."""
    for moment, event in events:
        if event["type"] == "response.output_text.delta":
            arrived += [moment] * len(event["delta"])
    found, end = [], 0
    for moment, length in given[events[0][1]["response"]["id"].removeprefix("resp_")]:
        end += length
        found.append(arrived[end - 1] - moment)
    return found
