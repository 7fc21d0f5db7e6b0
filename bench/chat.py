"""What it costs to tell a response as a chat: 32 streams of either kind on one server, in turns."""

import statistics
from collections.abc import Mapping

from bench.clients import Capture, read_streams
from bench.rounds import divide, tell
from bench.stored import CONCURRENT, PACED, running
from tests.support.raw_client import cpu_seconds
from tests.support.server_process import MODEL, ServerProcess

TOKENS = 600
ROUNDS = 6
BODIES: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "responses": ("/v1/responses", {"input": "Count to 125", "max_output_tokens": TOKENS}),
    "chat": (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "Count to 125"}],
            "max_tokens": TOKENS,
            "stream_options": {"include_usage": True},
        },
    ),
}
"""Each is stored, or not: only the telling differs."""


def run() -> None:
    """CPU time a token of the server's process, 32 streams at once: chat ÷ responses, stored and not."""
    with running(PACED) as server:
        for stored in (False, True):
            spent: dict[str, list[float]] = {name: [] for name in BODIES}
            for turn in range(-1, ROUNDS):
                for name in list(BODIES) if turn % 2 else reversed(list(BODIES)):
                    seconds = _stream(server, name, stored=stored)
                    if turn >= 0:
                        spent[name].append(seconds)
            kept = "stored" if stored else "not stored"
            for name, seconds_of in spent.items():
                each = statistics.median(seconds_of) / (CONCURRENT * TOKENS) * 1e6
                print(f"  {name}, {kept}: {each:.1f} microseconds of CPU a token")
            tell(f"{kept}: chat ÷ responses", divide(spent["chat"], spent["responses"]), "<=1.1")


def _stream(server: ServerProcess, name: str, *, stored: bool) -> float:
    """Seconds of CPU that the server took."""
    path, body = BODIES[name]
    before = cpu_seconds(server)
    asked = {"model": MODEL, "stream": True, "store": stored, **body}
    captures = read_streams(server.port, [asked] * CONCURRENT, path)
    spent = cpu_seconds(server) - before
    for capture in captures:
        _check(capture)
    return spent


def _check(capture: Capture) -> None:
    told = (f'"output_tokens":{TOKENS},', f'"completion_tokens":{TOKENS},')
    assert any(count.encode() in capture.raw for count in told), capture.raw[-500:]
