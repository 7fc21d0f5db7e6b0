"""Kill -9 at random moments, again and again, with streams in flight.

`make faults` runs more rounds than `make test`. A round's seed is in its name.
"""

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.fix_server import StartServer
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess
from tests.support.sse import DONE, parse, text_of

SEEDS = [0, 1, *(pytest.param(seed, marks=pytest.mark.faults) for seed in range(2, 60))]
STREAMS = 8
TOKENS = 120
PATIENCE_S = 30.0
"""Promise P2: how long after the restart a response may take to end."""


class Capture:
    """What one client received until it was cut off."""

    def __init__(self) -> None:
        self.received = b""
        self.events = 0

    def run(self, server: ServerProcess, signal: "Countdown") -> None:
        body = {"model": MODEL, "input": "Go on.", "stream": True}
        try:
            with httpx.stream("POST", f"{server.api}/responses", json=body, timeout=60) as response:
                for block in response.iter_bytes():
                    self.received += block
                    signal.count(block.count(b"\n\n"))
        except httpx.HTTPError:
            return

    @property
    def response_id(self) -> str | None:
        """The response's id, if the client was told of it."""
        frames = parse(whole(self.received))
        if not frames:
            return None
        identifier: str = frames[0].json["response"]["id"]
        return identifier


class Countdown:
    """Set when that many events have been received by all clients together."""

    def __init__(self, events: int) -> None:
        self._left = events
        self._lock = threading.Lock()
        self.reached = threading.Event()

    def count(self, events: int) -> None:
        with self._lock:
            self._left -= events
            if self._left <= 0:
                self.reached.set()


def whole(received: bytes) -> bytes:
    """The bytes up to the end of the last whole frame."""
    return received[: received.rfind(b"\n\n") + 2] if b"\n\n" in received else b""


def replay(server: ServerProcess, response_id: str) -> bytes:
    answer = httpx.get(f"{server.api}/responses/{response_id}?stream=true", timeout=60)
    assert answer.status_code == 200
    return answer.content


def status(server: ServerProcess, response_id: str) -> str:
    found: str = httpx.get(f"{server.api}/responses/{response_id}", timeout=60).json()["status"]
    return found


def check_survivor(server: ServerProcess, capture: Capture, response_id: str) -> None:
    """Everything that was promised of one response whose server was killed."""
    eventually(lambda: status(server, response_id) not in ("in_progress", "queued"), within=PATIENCE_S)
    stream = replay(server, response_id)
    assert stream.startswith(whole(capture.received).removesuffix(DONE)), "a client saw what is not stored"
    assert stream.endswith(DONE)
    frames = parse(stream)
    assert [frame.number for frame in frames] == list(range(len(frames)))
    final = frames[-1].json["response"]
    assert final == httpx.get(f"{server.api}/responses/{response_id}", timeout=60).json()
    assert text_of(frames) == "".join(part["text"] for item in final["output"] for part in item["content"])


@pytest.mark.parametrize("seed", SEEDS)
def test_what_clients_saw_is_what_is_kept_when_the_server_is_killed(
    start_server: StartServer, seed: int
) -> None:
    choose = random.Random(seed)
    server = start_server(scripted_tokens=TOKENS, scripted_step_seconds=0.004)
    countdown = Countdown(choose.randint(1, STREAMS * TOKENS))
    captures = [Capture() for _ in range(STREAMS)]
    with ThreadPoolExecutor(STREAMS) as pool:
        clients = [pool.submit(capture.run, server, countdown) for capture in captures]
        countdown.reached.wait(PATIENCE_S)
        server.kill()
        for client in clients:
            client.result()
    server.start()
    for capture in captures:
        if (response_id := capture.response_id) is not None:
            check_survivor(server, capture, response_id)
