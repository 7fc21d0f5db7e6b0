"""Words in the history: found with and without the index, whatever the items hold."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from openai import OpenAI

from server.store import database_roles
from server.store.schema import concurrent_indexes
from tests.fix_server import SCRIPTED
from tests.support.eventually import eventually
from tests.support.invariants import check
from tests.support.server_process import MODEL, ServerProcess, run_command

INSERT = (
    "insert into items (tenant, response_id, side, idx, id, type, payload, size) values"
    " ('t', gen_random_uuid(), 0, 0, %s, 'message', '{}', 2)"
)
WAITS = "select exists (select from pg_locks where relation = 'items'::regclass and not granted)"
SEARCH = "select side from admin.search(%s)"
AWKWARD = [
    "a xylophone\nin\tParis",
    "NUL \x00 and 😀 \\u0000 xylophone",
    "xylophone " + " ".join(f"w{number}" for number in range(60_000)),
    "xylophone " + "y" * 100_000,
]


@pytest.mark.parametrize("indexed", [True, False])
def test_items_are_found_by_their_words(database_url: str, indexed: bool) -> None:
    if indexed:
        done = run_command("db", "text-search", "on", database_url=database_url)
        assert (done.returncode, "Text search is on." in done.stderr) == (0, True), done.stderr
    server = ServerProcess(database_url, settings=SCRIPTED)
    server.start()
    with OpenAI(base_url=server.api, api_key="none", max_retries=0, timeout=60) as client:
        client.responses.create(model=MODEL, input="A xylophone in Paris", max_output_tokens=16)
        client.responses.create(model=MODEL, input="A trumpet in Rome", max_output_tokens=16)
    server.stop()
    database_roles.create_roles(database_url)
    with psycopg.connect(database_url, autocommit=True) as connection:
        for words in ("xylophone", '"xylophone in paris"', "xylophone -rome", "xylophone or violin"):
            assert connection.execute(SEARCH, [words]).fetchall() == [("input",)], words
        assert connection.execute(SEARCH, ["xylophone rome"]).fetchall() == []
        connection.execute("set enable_seqscan = off; set role holdfast_reader")
        plan = str(connection.execute("explain " + SEARCH, ["xylophone"]).fetchall())
        assert ("Bitmap Index Scan" in plan and "Seq Scan" not in plan) is indexed, plan
    check(database_url)


def test_no_item_is_refused_for_its_words(database_url: str) -> None:
    concurrent_indexes.index_words(database_url)
    with psycopg.connect(database_url, autocommit=True) as connection:
        for number, awkward in enumerate(AWKWARD):
            content = [{"type": "input_text", "text": awkward}]
            payload = json.dumps({"type": "message", "content": content})  # NULs and emoji escaped
            connection.execute(
                "insert into items (tenant, response_id, side, idx, id, type, payload, size) values"
                " ('t', gen_random_uuid(), 0, 0, %s, 'message', %s, 0)",
                [f"msg_{number}", payload],
            )
        assert len(connection.execute(SEARCH, ["xylophone"]).fetchall()) == len(AWKWARD)
        assert len(connection.execute(SEARCH, ["Paris"]).fetchall()) == 1


def has_index(url: str) -> bool:
    """Whether the index is there and whole."""
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "select indisvalid from pg_index where indexrelid = to_regclass(%s)",
            [concurrent_indexes.WORDS_INDEX],
        ).fetchone()
    return row == (True,)


def test_the_index_is_made_again_and_dropped_again(database_url: str) -> None:
    for turn, state in ((concurrent_indexes.index_words, True), (concurrent_indexes.drop_words, False)):
        for _ in range(2):
            turn(database_url)
            assert has_index(database_url) is state


@pytest.mark.parametrize("turn", [concurrent_indexes.index_words, concurrent_indexes.drop_words])
def test_nobody_queues_for_long_behind_a_turn_that_waits(
    database_url: str, turn: Callable[[str], None]
) -> None:
    if turn is concurrent_indexes.drop_words:
        concurrent_indexes.index_words(database_url)
    with (
        psycopg.connect(database_url) as long,
        psycopg.connect(database_url, autocommit=True) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        long.execute(INSERT, ["one"])
        turned = pool.submit(turn, database_url)
        eventually(lambda: other.execute(WAITS).fetchone() == (True,))
        other.execute("set lock_timeout = '5s'")
        try:
            other.execute(INSERT, ["two"])
        finally:
            long.commit()
        turned.result(60)
    assert has_index(database_url) is (turn is concurrent_indexes.index_words)
