"""Kill -9 in the middle: what was seen stays, and what was running ends."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import httpx
import pytest

from tests.acceptance.sdk_types import check_event, check_response
from tests.fix_server import SCRIPTED, StartServer
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess
from tests.support.sse import create, parse, replay, text_of

LONG = {"model": MODEL, "input": "Hello"}
PACE: dict[str, object] = {"scripted_tokens": 5000, "scripted_step_seconds": 0.01}


@dataclass(frozen=True)
class Killed:
    """A server that was killed and runs again, and what its clients had seen, whole events only."""

    server: ServerProcess
    seen: list[bytes]

    def addresses(self) -> list[str]:
        ids = [parse(raw)[0].json["response"]["id"] for raw in self.seen]
        return [f"{self.server.api}/responses/{response_id}" for response_id in ids]


@pytest.fixture(scope="module")
def killed(module_database: str) -> Iterator[Killed]:
    server = ServerProcess(module_database, settings={**SCRIPTED, **PACE, "lease_seconds": 2})
    with ExitStack() as stack:
        stack.callback(server.stop)
        server.start()
        opened = [stack.enter_context(create(server.url, LONG)) for _ in range(6)]
        for index, stream in enumerate(opened):
            stream.take(10 + 5 * index)
        server.kill()
        seen = [stream.raw[: stream.raw.rfind(b"\n\n") + 2] for stream in opened]
        server.start()
        yield Killed(server, seen)


def test_server_answers_at_once_when_it_was_killed_with_work_left(killed: Killed) -> None:
    answer = httpx.post(f"{killed.server.api}/responses", json={**LONG, "max_output_tokens": 4})
    assert answer.json()["status"] == "incomplete"


def test_responses_that_were_running_end_failed_though_nobody_follows_them(killed: Killed) -> None:
    def statuses() -> set[str]:
        return {httpx.get(address).json()["status"] for address in killed.addresses()}

    eventually(lambda: statuses() == {"failed"}, within=60)


def test_streams_that_clients_saw_are_kept_when_server_is_killed(killed: Killed) -> None:
    for raw, address in zip(killed.seen, killed.addresses(), strict=True):
        frames = parse(httpx.get(f"{address}?stream=true", timeout=60).content)
        assert b"".join(frame.raw for frame in frames).startswith(raw)
        assert [frame.number for frame in frames] == list(range(len(frames)))
        assert [frame.event for frame in frames[-4:]] == [
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.failed",
        ]
        for frame in frames:
            check_event(frame.data)
        final = frames[-1].json["response"]
        answer = httpx.get(address)
        assert check_response(answer.content).output_text == text_of(frames)
        assert answer.json() == final
        assert final["error"]["code"] == "server_error"
        assert final["output"][0]["status"] == "incomplete"


def test_finished_streams_are_the_same_when_server_is_killed_afterwards(start_server: StartServer) -> None:
    server = start_server(scripted_tokens=100)
    with create(server.url, LONG) as stream:
        raw = stream.read()
    server.restart()
    with replay(server.url, parse(raw)[0].json["response"]["id"]) as again:
        assert again.read() == raw


def test_replay_that_begins_before_response_is_given_up_is_ended_with_it(start_server: StartServer) -> None:
    server = start_server(**PACE)
    with create(server.url, LONG) as stream:
        seen = stream.take(20)
        server.kill()
    server.start()
    with replay(server.url, seen[0].json["response"]["id"]) as again:
        assert again.take(20) == seen
        assert list(again)[-1].event == "response.failed"
