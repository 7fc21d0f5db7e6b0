"""A key that ends takes what runs with it along: streams, responses, WebSockets, on every replica."""

import contextlib
import http.client
import time
from collections.abc import Callable, Iterator

import httpx
import psycopg
import pytest

from tests.acceptance.test_keys import HELLO, Key, begin, make_key, status
from tests.fix_server import PACED, StartServer
from tests.support.eventually import eventually
from tests.support.server_process import run_command
from tests.support.sse import Frame, create, replay
from tests.support.websocket import WebSocket

LONG = {**HELLO, "max_output_tokens": 4000}
AT_ONCE_S = 30.0
"""The answers would last for 80 s; it is about a second where nothing else runs."""

End = Callable[[str, Key], None]


def revoke(database_url: str, key: Key) -> None:
    ended = run_command("keys", "revoke", key.id, "--end", database_url=database_url)
    assert ended.returncode == 0, ended.stderr


def expire(database_url: str, key: Key) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("update api_keys set expires_at = clock_timestamp() where id = %s", [key.id])


@pytest.mark.parametrize("end", [revoke, expire])
def test_all_that_runs_with_a_key_ends_with_it(
    end: End, start_server: StartServer, database_url: str
) -> None:
    leaving, staying = make_key(database_url, "--end-streams"), make_key(database_url)
    here, there = start_server(**PACED), start_server(**PACED)
    others = begin(here, staying, LONG)
    with (
        create(here.url, {**LONG, "store": False}, key=leaving.text) as unstored,
        replay(there.url, others, key=leaving.text) as read_elsewhere,
        replay(there.url, others, key=staying.text) as read_on,
        WebSocket(there.url, headers={"Authorization": f"Bearer {leaving.text}"}) as socket,
    ):
        own, foreign, going_on = iter(unstored), iter(read_elsewhere), iter(read_on)
        assert next(own).event == next(foreign).event == next(going_on).event == "response.created"
        socket.send({"type": "response.create", **LONG, "store": False})
        assert socket.receive()["type"] == "response.created"
        end(database_url, leaving)
        ended_at = time.monotonic()
        *_, last = own
        assert last.json["response"]["status"] == "cancelled"
        assert drained(foreign) < 3000
        closed = closing_code(socket)
        assert time.monotonic() - ended_at < AT_ONCE_S
        assert closed == 1008
        next(going_on)
    headers = {"authorization": f"Bearer {leaving.text}"}
    assert httpx.post(f"{here.api}/responses", json=HELLO, headers=headers).status_code == 401
    assert status(here, staying, others) == "in_progress"


def closing_code(socket: WebSocket) -> int | None:
    """The code that the server closes with, after the messages that come before."""
    with contextlib.suppress(AssertionError):
        while socket.closed is None:
            socket.receive_text()
    return socket.closed


def drained(frames: Iterator[Frame]) -> int:
    """How many more frames a stream had that was cut off."""
    count = 0
    try:
        for _ in frames:
            count += 1
    except (http.client.HTTPException, OSError):
        pass
    return count


def test_a_key_that_merely_expires_leaves_its_streams_alone(
    start_server: StartServer, database_url: str
) -> None:
    key = make_key(database_url)
    server = start_server(**PACED)
    with create(server.url, {**HELLO, "max_output_tokens": 200}, key=key.text) as stream:
        frames = iter(stream)
        assert next(frames).event == "response.created"
        expire(database_url, key)
        *_, last = frames
    assert last.json["response"]["status"] == "incomplete"


def test_queued_responses_of_an_expired_key_are_cancelled(
    start_server: StartServer, database_url: str
) -> None:
    key, staying = make_key(database_url, "--end-streams"), make_key(database_url)
    server = start_server(**PACED, max_running=1)
    waiting = [begin(server, key, LONG) for _ in range(3)]
    expire(database_url, key)
    eventually(lambda: {status(server, staying, one) for one in waiting} == {"cancelled"}, within=30)
    with psycopg.connect(database_url) as connection:
        reasons = connection.execute("select distinct cancel_reason from admin.responses").fetchall()
    assert reasons == [("key_ended",)]
