"""F9: requests with an idempotency key that are sent many times, at once, during a kill and after it."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event

import openai
import psycopg
import pytest
from openai import OpenAI

from tests.acceptance.test_keys import make_key
from tests.fix_server import Connect, StartServer
from tests.fix_tally import Tally
from tests.support.attached import PATIENCE_S, status
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess

PACE: dict[str, object] = {"scripted_tokens": 40, "scripted_step_seconds": 0.005}


def send(client: OpenAI, key: str, words: str = "Go on.", *, background: bool = True) -> str:
    """The response's id."""
    made = client.responses.create(
        model=MODEL, input=f"{words} {key}", background=background, extra_headers={"Idempotency-Key": key}
    )
    return made.id


def send_until_answered(client: OpenAI, key: str, background: bool, given_up: Event) -> str:
    while not given_up.wait(0.02):
        with suppress(openai.APIConnectionError, openai.InternalServerError):
            return send(client, key, background=background)
    raise AssertionError("never answered")


@pytest.mark.parametrize(("keys", "sends"), [(10, 10), pytest.param(50, 20, marks=pytest.mark.faults)])
def test_a_key_makes_one_response_however_often_it_is_sent_at_once(
    start_server: StartServer,
    connect: Connect,
    database_url: str,
    keys: int,
    sends: int,
    tally: Tally,
) -> None:
    server = start_server(**PACE)
    ours, theirs = (make_key(database_url, "--tenant", name).text for name in ("ours", "theirs"))
    client = connect(server, ours)
    names = [f"key-{number}" for number in range(keys) for _ in range(sends)]
    with ThreadPoolExecutor(sends) as pool:
        made = list(pool.map(lambda name: send(client, name, background=name[-1] < "5"), names))
    found = {name: {one for key, one in zip(names, made, strict=True) if key == name} for name in names}
    assert [len(ids) for ids in found.values()] == [1] * keys
    assert len(set(made)) == keys
    for name in found:
        with pytest.raises(openai.BadRequestError) as refused:
            send(client, name, "Something else.", background=name[-1] < "5")
        assert refused.value.code == "idempotency_key_reused"
    stranger = connect(server, theirs)
    others = {send(stranger, name, background=name[-1] < "5") for name in found}
    assert len(others | set(made)) == 2 * keys
    with psycopg.connect(database_url, autocommit=True) as connection:
        eventually(lambda: metered(connection) == 2 * keys, within=PATIENCE_S)
        assert rows(connection, "responses") == rows(connection, "idempotency_keys") == 2 * keys
    tally["F9", "sends with a key"] += len(names)


@pytest.mark.parametrize("keys", [8, pytest.param(50, marks=pytest.mark.faults)])
def test_a_key_makes_one_response_when_it_is_sent_again_during_a_kill_and_after_it(
    start_server: StartServer, connect: Connect, database_url: str, keys: int, tally: Tally
) -> None:
    server = start_server(**PACE)
    client = connect(server)
    given_up = Event()
    names = [f"key-{number}" for number in range(keys)] * 3
    with ThreadPoolExecutor(24) as pool, psycopg.connect(database_url, autocommit=True) as connection:
        try:
            sent = [
                pool.submit(send_until_answered, client, name, int(name[4:]) % 2 == 0, given_up)
                for name in names
            ]
            eventually(lambda: rows(connection, "responses") >= keys // 2, within=PATIENCE_S)
            server.restart()
            made = [future.result(PATIENCE_S) for future in sent]
        finally:
            given_up.set()
        again = [send(client, name, background=int(name[4:]) % 2 == 0) for name in names]
        assert made == again
        assert len(set(made)) == keys == rows(connection, "responses")
        eventually(lambda: metered(connection) == keys, within=PATIENCE_S)
    check_ends(server, dict(zip(names, made, strict=True)))
    tally["F9", "keys sent again around a kill"] += keys


def check_ends(server: ServerProcess, made: dict[str, str]) -> None:
    for name, response_id in made.items():
        in_background = int(name[4:]) % 2 == 0
        assert status(server, response_id) in ({"completed"} if in_background else {"completed", "failed"})


def metered(connection: psycopg.Connection) -> int:
    return rows(connection, "usage_ledger")


def rows(connection: psycopg.Connection, table: str) -> int:
    row = connection.execute(f"select count(*) from {table}").fetchone()  # noqa: S608
    assert row is not None
    return int(row[0])
