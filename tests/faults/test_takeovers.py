"""F13 and F14: of two replicas one is killed, or stands still past its lease; readers of the other go on."""

import os
import random
import signal
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.fix_server import StartServer
from tests.fix_tally import Tally
from tests.support.attached import (
    HTTP,
    P2_SECONDS,
    Attached,
    Countdown,
    Crowd,
    ask,
    check,
    output_text,
    retrieve,
    uncut,
)
from tests.support.eventually import eventually
from tests.support.rounds import rounds
from tests.support.server_process import ServerProcess
from tests.support.sse import parse, replay, text_of

TOKENS = 150
PACE: dict[str, object] = {"scripted_tokens": TOKENS, "scripted_step_seconds": 0.01}
START_AGAIN_EXIT = 70


class Reader:
    """Reads one response's stream over one connection, from its start to its end."""

    def __init__(self, server: ServerProcess, body: dict[str, object], countdown: Countdown) -> None:
        answer = HTTP.post(f"{server.api}/responses", json=body)
        assert answer.status_code == 200, answer.text
        self.response_id: str = answer.json()["id"]
        self.body = body
        self.raw = b""
        self._countdown = countdown

    def read(self, server: ServerProcess) -> None:
        with replay(server.url, self.response_id) as stream:
            for _ in stream:
                self._countdown.count(1)
            self.raw = stream.raw


def check_reader(reader: Reader, server: ServerProcess, expected: str) -> int:
    """It saw one unbroken stream, which is the stored one and says what was to be said."""
    frames = parse(reader.raw)
    assert [frame.number for frame in frames] == list(range(len(frames)))
    with replay(server.url, reader.response_id) as again:
        assert parse(again.read()) == frames
    final = retrieve(server, reader.response_id)
    assert final == frames[-1].json["response"]
    assert final["status"] == "completed"
    assert text_of(frames) == output_text(final) == expected
    tokens: int = final["usage"]["output_tokens"]
    return tokens


@pytest.mark.faults
def test_readers_of_the_replica_that_is_left_see_unbroken_streams(
    start_server: StartServer, tally: Tally
) -> None:
    kill_by_turns(start_server(**PACE), start_server(**PACE), 0, 1, tally)


@pytest.mark.faults
def test_readers_see_unbroken_streams_however_often_one_of_two_replicas_is_killed(
    start_server: StartServer, tally: Tally
) -> None:
    kill_by_turns(start_server(**PACE), start_server(**PACE), 1, 10, tally)


def kill_by_turns(one: ServerProcess, other: ServerProcess, seed: int, times: int, tally: Tally) -> None:
    choose = random.Random(seed)
    for _ in range(times):
        tally["F13", "tokens compared"] += kill_one_of_two(one, other, choose)
        tally["F13", "replicas killed"] += 1
        one.start()
        one, other = other, one


def kill_one_of_two(doomed: ServerProcess, survivor: ServerProcess, choose: random.Random) -> int:
    count = choose.randint(8, 16)
    countdown = Countdown(choose.randint(1, count * TOKENS // 2))
    bodies = [ask(number, choose, background=True) for number in range(count)]
    with ThreadPoolExecutor(count) as pool:
        readers = [Reader(choose.choice((doomed, survivor)), body, countdown) for body in bodies]
        reading = [pool.submit(reader.read, survivor) for reader in readers]
        countdown.wait(lambda: all(future.done() for future in reading))
        doomed.kill()
        for future in reading:
            future.result(P2_SECONDS)
    texts = uncut(survivor, bodies)
    return sum(check_reader(reader, survivor, text) for reader, text in zip(readers, texts, strict=True))


@pytest.mark.parametrize("seed", rounds(few=1, many=5))
def test_a_replica_that_stood_still_past_its_lease_changes_nothing_tells_nobody_and_ends(
    start_server: StartServer, database_url: str, seed: int, tally: Tally
) -> None:
    choose = random.Random(seed)
    frozen, other = start_server(**PACE), start_server(**PACE)
    here = [frozen]
    countdown = Countdown(choose.randint(1, 4 * TOKENS))
    with (
        Crowd(lambda: here[0]) as crowd,
        psycopg.connect(database_url, autocommit=True) as connection,
    ):
        for number in range(8):
            crowd.start(Attached(ask(number // 2, choose, background=number % 2 == 0), countdown))
        countdown.wait(crowd.is_over)
        os.kill(frozen.pid, signal.SIGSTOP)
        here[0] = other
        eventually(lambda: unfinished(connection) == 0, within=P2_SECONDS)
        before = kept(connection)
        os.kill(frozen.pid, signal.SIGCONT)
        assert frozen.wait() == START_AGAIN_EXIT
        crowd.finish()
        assert kept(connection) == before
    tally["F14", "tokens compared"] += check(crowd.clients, other)
    tally["F14", "replicas frozen past their lease"] += 1


def unfinished(connection: psycopg.Connection) -> int:
    row = connection.execute(
        "select count(*) from responses where status in ('queued', 'in_progress')"
    ).fetchone()
    assert row is not None
    return int(row[0])


def kept(connection: psycopg.Connection) -> list[object]:
    """Everything that is stored of responses, and how often each was metered."""
    return [
        connection.execute(f"select t::text from {table} t order by 1").fetchall()  # noqa: S608
        for table in ("responses", "items", "response_streams", "response_events_hot", "usage_ledger")
    ]
