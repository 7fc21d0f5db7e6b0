"""Kill -9 in the middle: what was seen stays, and what was running ends."""

from contextlib import ExitStack

import httpx
import pytest

from tests.acceptance.sdk_types import check_event, check_response
from tests.fix_server import StartServer
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess
from tests.support.sse import Frame, create, parse, replay, text_of

LONG = {"model": MODEL, "input": "Hello"}
PACE: dict[str, object] = {"scripted_tokens": 5000, "scripted_step_seconds": 0.01}
LEASE_AND_MORE_S = 2.0 + 6.0
"""Within which a response that a killed server was generating has ended."""


def kill_in_the_middle(server: ServerProcess, streams: int = 1) -> list[bytes]:
    """What the clients of so many streams had seen when the server was killed; it is running again."""
    with ExitStack() as stack:
        opened = [stack.enter_context(create(server.url, LONG)) for _ in range(streams)]
        for index, stream in enumerate(opened):
            stream.take(10 + 5 * index)
        server.kill()
        seen = [stream.raw[: stream.raw.rfind(b"\n\n") + 2] for stream in opened]
    server.start()
    return seen


def follow(server: ServerProcess, response_id: str) -> list[Frame]:
    with replay(server.url, response_id) as stream:
        return parse(stream.read())


@pytest.fixture
def killed(start_server: StartServer) -> tuple[ServerProcess, list[bytes]]:
    server = start_server(**PACE)
    return server, kill_in_the_middle(server, streams=6)


def test_streams_that_clients_saw_are_kept_when_server_is_killed(
    killed: tuple[ServerProcess, list[bytes]],
) -> None:
    server, seen = killed
    for raw in seen:
        response_id = parse(raw)[0].json["response"]["id"]
        frames = follow(server, response_id)  # begins before the response is given up, and waits for that
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
        answer = httpx.get(f"{server.api}/responses/{response_id}")
        assert check_response(answer.content).output_text == text_of(frames)
        assert answer.json() == final
        assert final["error"]["code"] == "server_error"
        assert final["output"][0]["status"] == "incomplete"


def test_response_ends_failed_when_nobody_asks_for_it_after_the_kill(start_server: StartServer) -> None:
    server = start_server(**PACE)
    (raw,) = kill_in_the_middle(server)
    address = f"{server.api}/responses/{parse(raw)[0].json['response']['id']}"
    eventually(lambda: httpx.get(address).json()["status"] == "failed", within=LEASE_AND_MORE_S)


def test_finished_streams_are_the_same_when_server_is_killed_afterwards(start_server: StartServer) -> None:
    server = start_server(scripted_tokens=100)
    with create(server.url, LONG) as stream:
        raw = stream.read()
    server.restart()
    with replay(server.url, parse(raw)[0].json["response"]["id"]) as again:
        assert again.read() == raw


def test_server_answers_at_once_when_it_was_killed_with_work_left(
    killed: tuple[ServerProcess, list[bytes]],
) -> None:
    server, _ = killed
    answer = httpx.post(f"{server.api}/responses", json={**LONG, "max_output_tokens": 4})
    assert answer.json()["status"] == "incomplete"
