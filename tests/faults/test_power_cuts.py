"""F48: server and embedded Postgres die at one instant under streams, whose clients resume."""

import random
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import httpx
import pytest

from tests.fix_server import StartServer
from tests.fix_tally import Tally
from tests.support.attached import HTTP, Body, Countdown, ask, output_text, retrieve, status, uncut
from tests.support.eventually import eventually
from tests.support.powered_server import PoweredServer
from tests.support.server_process import ServerProcess
from tests.support.sse import DONE, KEEP_ALIVE, Frame, parse, text_of

pytestmark = pytest.mark.faults

ROUNDS = 5
STREAMS = 20
TOKENS = 150
PACE: dict[str, object] = {"scripted_tokens": TOKENS, "scripted_step_seconds": 0.01}
PATIENCE_S = 60.0
REFUSALS = {"stream_forked", "event_not_stored"}
Manner = tuple[Literal["number", "id"], Literal["at once", "after the end"]]
AT_ONCE: list[Manner] = [("number", "at once"), ("id", "at once")]
AFTER_END: list[Manner] = [("number", "after the end"), ("id", "after the end")]


@dataclass
class Resumed:
    """The second part of a client's stream, up to the end of the response or an error."""

    frames: list[Frame] = field(default_factory=list)
    error: str | None = None


@dataclass
class Client:
    """Reads a background response's stream until it is cut off, then resumes in every manner."""

    body: Body
    seen: list[Frame] = field(default_factory=list)
    rest: dict[Manner, Resumed] = field(default_factory=dict)

    @property
    def response_id(self) -> str:
        name: str = self.seen[0].json["response"]["id"]
        return name

    def has_ended(self, server: ServerProcess) -> bool:
        return status(server, self.response_id) not in ("queued", "in_progress")

    def begin(self, server: ServerProcess, countdown: Countdown) -> None:
        received = b""
        try:
            with HTTP.stream("POST", f"{server.api}/responses", json={**self.body, "stream": True}) as answer:
                assert answer.status_code == 200, answer.read()
                for piece in answer.iter_bytes():
                    received += piece
                    countdown.count(piece.count(b"\n\n"))
        except httpx.HTTPError:
            pass
        received = received.replace(KEEP_ALIVE, b"")
        self.seen = parse(received[: received.rfind(b"\n\n") + 2] if b"\n\n" in received else b"")

    def resume(self, server: ServerProcess, manner: Manner) -> None:
        last = self.seen[-1]
        after = {"stream": "true", "starting_after": last.number if manner[0] == "number" else last.id}
        answer = HTTP.get(f"{server.api}/responses/{self.response_id}", params=after)
        if answer.status_code != 200:
            assert answer.status_code == 400, answer.text
            self.rest[manner] = Resumed(error=answer.json()["error"]["code"])
            return
        frames = parse(answer.content)
        if frames and frames[-1].event == "error":
            self.rest[manner] = Resumed(frames[:-1], frames[-1].json["code"])
            return
        assert answer.content.endswith(DONE)
        self.rest[manner] = Resumed(frames)


@pytest.mark.parametrize("durability", ["strict", "normal"])
def test_no_client_that_resumes_after_a_power_cut_is_left_with_another_text_without_an_error(
    made_dir: Path, start_server: StartServer, durability: str, tally: Tally
) -> None:
    choose = random.Random(durability)
    clients: list[Client] = []
    with PoweredServer(made_dir, durability=durability, **PACE) as powered:
        for _ in range(ROUNDS):
            begun = cut_under_streams(powered, choose)
            tally["F48", f"power cuts, {durability}"] += 1
            resume_all(powered.process, begun, AT_ONCE)
            eventually(lambda: all(one.has_ended(powered.process) for one in begun), within=PATIENCE_S)  # noqa: B023
            resume_all(powered.process, begun, AFTER_END)
            for client in begun:
                tally.update(check(client, powered.process, durability))
            clients += begun
        texts = [output_text(retrieve(powered.process, client.response_id)) for client in clients]
        quick = start_server(scripted_tokens=TOKENS)
        assert texts == uncut(quick, [client.body for client in clients])


def cut_under_streams(powered: PoweredServer, choose: random.Random) -> list[Client]:
    """Cuts the power somewhere in new streams; returns the clients that know their response."""
    clients = [Client(ask(number, choose, background=True)) for number in range(STREAMS)]
    countdown = Countdown(choose.randint(STREAMS * TOKENS // 10, STREAMS * TOKENS * 8 // 10))
    with ThreadPoolExecutor(STREAMS) as pool:
        begun = [pool.submit(client.begin, powered.process, countdown) for client in clients]
        countdown.wait(lambda: all(future.done() for future in begun))
        powered.cut()
        for future in begun:
            future.result()
        powered.start()
    return [client for client in clients if client.seen]


def resume_all(server: ServerProcess, clients: Sequence[Client], manners: Sequence[Manner]) -> None:
    with ThreadPoolExecutor(2 * STREAMS) as pool:
        for future in [
            pool.submit(client.resume, server, manner) for client in clients for manner in manners
        ]:
            future.result()


def check(client: Client, server: ServerProcess, durability: str) -> Counter[tuple[str, str]]:
    """Fails if the client has another text than the stored one, and was not told so; returns counts."""
    stored = parse(HTTP.get(f"{server.api}/responses/{client.response_id}?stream=true").content)
    final = retrieve(server, client.response_id)
    assert final["status"] == "completed"
    assert [frame.number for frame in stored] == list(range(len(stored)))
    assert text_of(stored) == output_text(final)
    counts: Counter[tuple[str, str]] = Counter()
    for manner, rest in client.rest.items():
        whole = [*client.seen, *rest.frames] == stored
        if durability == "strict":
            assert (whole, rest.error) == (True, None)
        elif manner[0] == "id":
            assert whole or rest.error in REFUSALS, (
                rest.error,
                client.seen[-1],
                stored[len(client.seen) - 1],
            )
        same_text = text_of([*client.seen, *rest.frames]) == output_text(final)
        result = rest.error or ("whole" if whole else "other events" if same_text else "another text")
        counts["F48", f"streams resumed by {manner[0]} {manner[1]}, {durability}: {result}"] += 1
    return counts
