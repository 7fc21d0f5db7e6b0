"""F17: cancels and deletions around the moment at which a response ends by itself: there is one ending."""

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import httpx
import psycopg
import pytest

from tests.fix_server import StartServer
from tests.fix_tally import Tally
from tests.support.attached import HTTP, PATIENCE_S, ask, output_text, retrieve
from tests.support.eventually import eventually
from tests.support.server_process import ServerProcess
from tests.support.sse import DONE, create, parse, text_of

TOKENS = 30
EVENTS = TOKENS + 8
PACE: dict[str, object] = {"scripted_tokens": TOKENS, "scripted_step_seconds": 0.02}
AT_A_TIME = 8
LAST_TERMINAL = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "cancelled": "response.incomplete",
}


def race(server: ServerProcess, seed: int, verb: str) -> Any:
    """Streams a response and, after an early event or a late one, cancels it twice at once, or deletes it."""
    choose = random.Random(seed)
    body = ask(seed % 4, choose, background=choose.random() < 0.5, max_output_tokens=TOKENS - seed % 3 % 2)
    with create(server.url, body) as stream:
        begin = choose.choice((3, EVENTS - 12))
        seen = stream.take(choose.randint(begin, begin + 12))
        response_id = seen[0].json["response"]["id"]
        answers = both(server, response_id, verb)
        if not stream.raw.endswith(DONE):
            stream.read()
    return answers, stream.raw, response_id


def both(server: ServerProcess, response_id: str, verb: str) -> list[httpx.Response]:
    """Two of the same request at the same time."""
    address = f"{server.api}/responses/{response_id}"
    start = Barrier(2)

    def send() -> httpx.Response:
        start.wait(PATIENCE_S)
        if verb == "delete":
            return HTTP.delete(address)
        return HTTP.post(f"{address}/cancel")

    with ThreadPoolExecutor(2) as pool:
        return [future.result() for future in [pool.submit(send), pool.submit(send)]]


def race_to_cancel(server: ServerProcess, seed: int) -> str:
    answers, raw, response_id = race(server, seed, "cancel")
    final = retrieve(server, response_id)
    for answer in answers:
        if answer.status_code == 400:  # it had ended by itself, and is one that cannot be cancelled then
            assert (final["background"], final["status"] != "cancelled") == (False, True)
        else:
            assert (answer.status_code, answer.json()) == (200, final)
    frames = parse(raw)
    assert raw.endswith(DONE)
    ends = [frame for frame in frames if frame.event in LAST_TERMINAL.values()]
    assert ends == frames[-1:]
    assert frames[-1].json["response"] == final
    assert frames[-1].event == LAST_TERMINAL[final["status"]]
    assert [frame.number for frame in frames] == list(range(len(frames)))
    assert text_of(frames) == output_text(final)
    ending: str = final["status"]
    return ending


def race_to_delete(server: ServerProcess, seed: int) -> str:
    answers, _raw, response_id = race(server, seed, "delete")
    assert sorted(answer.status_code for answer in answers) == [200, 404]
    assert HTTP.get(f"{server.api}/responses/{response_id}").status_code == 404
    return "deleted"


@pytest.mark.parametrize("pairs", [40, pytest.param(500, marks=pytest.mark.faults)])
def test_a_response_that_ends_while_it_is_cancelled_twice_has_one_ending(
    start_server: StartServer, database_url: str, pairs: int, tally: Tally
) -> None:
    server = start_server(**PACE)
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        endings = Counter(pool.map(lambda seed: race_to_cancel(server, seed), range(pairs)))
    for ending, count in endings.items():
        tally["F17", f"races of cancel and end: {ending}"] += count
    assert endings["cancelled"] > 0
    assert endings["completed"] + endings["incomplete"] > 0
    with psycopg.connect(database_url, autocommit=True) as connection:
        assert count_of(connection, "usage_ledger") == pairs


@pytest.mark.parametrize("pairs", [20, pytest.param(200, marks=pytest.mark.faults)])
def test_a_response_that_ends_while_it_is_deleted_twice_is_deleted_once_and_leaves_nothing(
    start_server: StartServer, database_url: str, pairs: int, tally: Tally
) -> None:
    server = start_server(**PACE)
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        tally["F17", "races of delete and end"] += sum(
            1 for _ in pool.map(lambda seed: race_to_delete(server, seed), range(pairs))
        )
    with psycopg.connect(database_url, autocommit=True) as connection:
        eventually(lambda: count_of(connection, "responses") == 0)
        for table in ("items", "response_streams", "response_events_hot"):
            assert count_of(connection, table) == 0, table
        assert count_of(connection, "usage_ledger") == pairs


def test_of_all_that_are_cancelled_in_the_queue_none_uses_a_token(
    start_server: StartServer, tally: Tally
) -> None:
    server = start_server(scripted_tokens=5000, scripted_step_seconds=0.02, max_running=1)
    choose = random.Random(0)
    ids = [
        HTTP.post(f"{server.api}/responses", json=ask(n, choose, background=True)).json()["id"]
        for n in range(AT_A_TIME)
    ]
    eventually(lambda: any(retrieve(server, found)["status"] == "in_progress" for found in ids))
    waiting = [found for found in ids if retrieve(server, found)["status"] == "queued"]
    assert len(waiting) == AT_A_TIME - 1
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        answers = list(pool.map(lambda found: both(server, found, "cancel"), waiting))
    for first, second in answers:
        assert first.json() == second.json()
        assert first.json()["status"] == "cancelled"
        assert first.json()["usage"]["output_tokens"] == 0
    tally["F17", "cancelled in the queue"] += len(answers)


def count_of(connection: psycopg.Connection, table: str) -> int:
    row = connection.execute(f"select count(*) from {table}").fetchone()  # noqa: S608
    assert row is not None
    return int(row[0])
