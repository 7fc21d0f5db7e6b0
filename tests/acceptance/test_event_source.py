"""What a browser's EventSource does by itself: it connects again with the last id, until there is nothing."""

import zlib

import httpx
import pytest

from tests.acceptance.error_object import check_error
from tests.fix_server import Connect
from tests.support.server_process import MODEL, ServerProcess
from tests.support.sse import DONE, Frame, create, join, parse

HELLO = {"model": MODEL, "input": "Hello"}
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "stream": True}
TEXT = {"model": MODEL, "prompt": "Hello", "stream": True}


def stored(server: ServerProcess) -> tuple[str, list[Frame]]:
    """The address of a response's stream, and its events."""
    with create(server.url, HELLO) as stream:
        frames = parse(stream.read())
    return f"{server.api}/responses/{frames[0].json['response']['id']}?stream=true", frames


def reconnect(address: str, last: object) -> httpx.Response:
    headers = {"last-event-id": str(last), "accept": "text/event-stream"}
    return httpx.get(address, headers=headers, timeout=60)


def test_every_stored_event_has_its_number_the_attempt_and_a_digest_as_id(
    scripted_server: ServerProcess,
) -> None:
    _, frames = stored(scripted_server)
    for frame in frames:
        assert frame.id == f"{frame.number}-1.{zlib.crc32(frame.data.encode()):08x}"


def test_event_that_is_not_stored_has_its_number_as_id(scripted_server: ServerProcess) -> None:
    with create(scripted_server.url, {**HELLO, "store": False}) as stream:
        assert all(frame.id == str(frame.number) for frame in stream)


def test_stream_goes_on_after_the_last_event_that_was_seen(scripted_server: ServerProcess) -> None:
    address, frames = stored(scripted_server)
    assert reconnect(address, 3).content == join(frames[4:])
    assert reconnect(address, frames[3].id).content == join(frames[4:])


def test_last_event_seen_counts_where_the_address_began_earlier(scripted_server: ServerProcess) -> None:
    """EventSource connects to the same address again, whatever was in it."""
    address, frames = stored(scripted_server)
    assert reconnect(address + "&starting_after=1", 5).content == join(frames[6:])


def test_there_is_nothing_after_the_end(scripted_server: ServerProcess) -> None:
    address, frames = stored(scripted_server)
    for last in (frames[-1].number, frames[-1].id):
        answer = reconnect(address, last)
        assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers["x-request-id"].startswith("req_")


def test_whoever_asks_after_the_end_by_number_hears_that_it_is_done(scripted_server: ServerProcess) -> None:
    address, frames = stored(scripted_server)
    answer = httpx.get(f"{address}&starting_after={frames[-1].number}")
    assert (answer.status_code, answer.content) == (200, DONE)


def test_running_response_is_followed_from_the_last_event(
    paced_server: ServerProcess, connect: Connect
) -> None:
    client = connect(paced_server)
    response = client.responses.create(**HELLO, background=True, max_output_tokens=40)  # type: ignore[call-overload]
    answer = reconnect(f"{paced_server.api}/responses/{response.id}?stream=true", 1)
    frames = parse(answer.content)
    assert [frame.number for frame in frames] == list(range(2, 2 + len(frames)))
    assert frames[-1].event == "response.incomplete"


@pytest.mark.parametrize(
    "last", ["x", "-1", "1.5", "1" * 10, "1-", "1-1.0", "1-x.0123abcd", "٣".encode().decode("latin-1")]
)
def test_id_that_no_event_has_is_refused(scripted_server: ServerProcess, last: str) -> None:
    address, _ = stored(scripted_server)
    answer = httpx.get(address, headers={b"last-event-id": last.encode("latin-1")})
    assert check_error(answer, 400, "invalid_request_error")["param"] == "Last-Event-ID"


@pytest.mark.parametrize(("path", "body"), [("chat/completions", CHAT), ("completions", TEXT)])
def test_no_proxy_gathers_the_events_of_a_stream(
    scripted_server: ServerProcess, path: str, body: dict[str, object]
) -> None:
    answer = httpx.post(f"{scripted_server.api}/{path}", json=body)
    assert answer.headers["x-accel-buffering"] == "no"
    assert "no-cache" in answer.headers["cache-control"]


def test_no_proxy_gathers_the_events_of_a_response(scripted_server: ServerProcess) -> None:
    with create(scripted_server.url, HELLO) as stream:
        assert stream.response.headers["x-accel-buffering"] == "no"
        assert "no-cache" in stream.response.headers["cache-control"]
        stream.read()
