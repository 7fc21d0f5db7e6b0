"""F30: rows of running responses that others have locked. F31: rows that are taken away or deleted.

Either concerns the responses themselves and none that runs beside them.
"""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from time import monotonic
from uuid import UUID, uuid4

import httpx
import psycopg
import pytest

from tests.fix_server import StartServer
from tests.fix_tally import Tally
from tests.support.attached import HTTP, PATIENCE_S, Attached, Body, Countdown, Crowd, retrieve, status
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess

BESIDE = 32
"""Streams beside those whose rows are locked."""
PAUSE_S = 1.0
"""What a locked row may add to the longest pause of any stream beside it."""
QUIET_S = 3.0
LOCKED_S = 8.0
"""The response ends after 2 s, and its end is tried for 19 s."""
LONG_S = 26.0
"""Longer than the end of a locked response is tried."""
PACE = {"scripted_tokens": 5000, "scripted_step_seconds": 0.02}


class Pauses(Countdown):
    """How long a stream stood still at the longest."""

    def __init__(self) -> None:
        super().__init__(0)
        self._last: float | None = None
        self._longest = 0.0

    def count(self, events: int) -> None:
        if not events:
            return
        now = monotonic()
        if self._last is not None:
            self._longest = max(self._longest, now - self._last)
        self._last = now

    def take(self) -> float:
        """The longest pause since this was last asked, one that goes on now too."""
        now = monotonic()
        longest = max(self._longest, now - self._last) if self._last is not None else self._longest
        self._longest = 0.0
        return longest


def ask(tokens: int, **more: object) -> Body:
    return {"model": MODEL, "input": "Go on.", "max_output_tokens": tokens, **more}


def started(client: Attached) -> bool:
    return client.received.count(b"\n\n") > 3


@contextmanager
def locked(database_url: str, clients: Sequence[Attached]) -> Iterator[None]:
    """Somebody holds the rows of these responses."""
    with psycopg.connect(database_url) as connection:
        ids = [UUID(client.response_id.removeprefix("resp_")) for client in clients]
        rows = connection.execute("select id from responses where id = any(%s) for update", [ids]).fetchall()
        assert len(rows) == len(clients)
        yield
        connection.rollback()


def is_whole(server: ServerProcess, client: Attached) -> None:
    """It saw every event once, and what is stored."""
    assert [frame.number for frame in client.frames] == list(range(len(client.frames)))
    assert client.attempts == 1
    address = f"{server.api}/responses/{client.response_id}"
    assert HTTP.get(f"{address}?stream=true").content == client.received
    assert retrieve(server, client.response_id) == client.final


def longest_pause(clients: Sequence[Attached]) -> float:
    return max(client.countdown.take() for client in clients if isinstance(client.countdown, Pauses))


def pass_time(seconds: float) -> None:
    threading.Event().wait(seconds)


@pytest.mark.faults
def test_streams_beside_locked_rows_do_not_stand_still(
    start_server: StartServer, database_url: str, tally: Tally
) -> None:
    server = start_server(**PACE)
    beside = [Attached(ask(int(50 * (QUIET_S + LONG_S + 15))), Pauses()) for _ in range(BESIDE)]
    with Crowd(lambda: server) as crowd:
        crowd.start(*beside)
        eventually(lambda: all(started(client) for client in beside), within=PATIENCE_S)
        longest_pause(beside)
        pass_time(QUIET_S)
        quiet = longest_pause(beside)
        waiting, given_up = (Attached(ask(100, temperature=0)) for _ in range(2))
        crowd.start(waiting, given_up)
        eventually(lambda: started(waiting) and started(given_up), within=PATIENCE_S)
        with locked(database_url, [given_up]):
            with locked(database_url, [waiting]):
                pass_time(LOCKED_S)
                assert status(server, waiting.response_id) == "in_progress"
            eventually(lambda: waiting.ended_at is not None, within=PATIENCE_S)
            pass_time(LONG_S - LOCKED_S)
            assert given_up.ended_at is None
        eventually(lambda: given_up.ended_at is not None, within=PATIENCE_S)
        paused = longest_pause(beside)
        crowd.finish()
    assert paused <= quiet + PAUSE_S, f"{paused:.2f} s, {quiet:.2f} s when nothing was locked"
    for client in crowd.clients:
        is_whole(server, client)
    assert waiting.final["status"] == "incomplete"
    assert waiting.final["usage"]["output_tokens"] == 100
    assert given_up.final["status"] == "failed"
    assert {client.final["status"] for client in beside} == {"incomplete"}
    assert not server.has_ended
    tally["F30", "streams beside locked rows"] += BESIDE
    tally["F30", "locked rows"] += 2
    tally["F30", "ms that a stream stood still at most, locked"] += round(paused * 1000)
    tally["F30", "ms that a stream stood still at most, before"] += round(quiet * 1000)


def read(server: ServerProcess, received: dict[int, bytes], number: int) -> None:
    """Reads a stream to its end, wherever that is."""
    with httpx.stream(
        "POST", f"{server.api}/responses", json=ask(300, stream=True), timeout=PATIENCE_S
    ) as answer:
        received[number] = b""
        for piece in answer.iter_bytes():
            received[number] += piece


def response_of(received: bytes) -> UUID:
    return UUID(received.partition(b'"id":"resp_')[2][:32].decode())


@pytest.mark.faults
@pytest.mark.parametrize("how", ["deleted", "taken", "left"])
def test_a_replica_goes_on_with_the_rows_that_it_has(
    start_server: StartServer, database_url: str, how: str, tally: Tally
) -> None:
    server = start_server(**PACE)
    kept = [Attached(ask(400)) for _ in range(8)]
    received: dict[int, bytes] = {}
    with (
        Crowd(lambda: server) as crowd,
        ThreadPoolExecutor(8) as pool,
        psycopg.connect(database_url, autocommit=True) as connection,
    ):
        crowd.start(*kept)
        lost = [pool.submit(read, server, received, number) for number in range(8)]
        eventually(lambda: len(received) == 8 and all(one.count(b"\n\n") > 5 for one in received.values()))
        ids = [response_of(one) for one in received.values()]
        take_away(connection, how, ids)
        for reader in lost:
            reader.result(PATIENCE_S)
        crowd.finish()
        for client in kept:
            is_whole(server, client)
            assert client.final["status"] == "incomplete"
            assert client.final["usage"]["output_tokens"] == 400
        if how == "deleted":
            eventually(lambda: logged(connection, ids) == 0)
            connection.execute("delete from items where response_id = any(%s)", [ids])
        else:
            assert all(b"response.failed" in one for one in received.values())
    assert not server.has_ended
    server.ask_to_end()
    assert server.wait() == 0
    tally["F31", f"rows {how} under their runs"] += len(ids)
    tally["F31", "responses beside them that ended well"] += len(kept)


def take_away(connection: psycopg.Connection, how: str, ids: list[UUID]) -> None:
    if how == "deleted":
        connection.execute("delete from responses where id = any(%s)", [ids])
    elif how == "left":
        connection.execute("update responses set replica_id = null where id = any(%s)", [ids])
    else:
        other = uuid4()
        connection.execute(
            "insert into replicas (id, state, host, pid, version, revision, models)"
            " values (%s, 'alive', 'elsewhere', 1, '0', '0001', '{}')",
            [other],
        )
        connection.execute(
            "update responses set replica_id = %s, attempt = attempt + 1 where id = any(%s)", [other, ids]
        )


def logged(connection: psycopg.Connection, ids: list[UUID]) -> int:
    found = connection.execute(
        "select count(*) from response_events_hot where response_id = any(%s)", [ids]
    ).fetchone()
    assert found is not None
    count: int = found[0]
    return count
