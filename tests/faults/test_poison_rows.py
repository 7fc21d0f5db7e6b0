"""F27: rows that no release can have written lie in every table that the queue is read from.

Each of them ends its own response, and nothing else: the others go on, no thread dies, and no replica.
"""

from collections.abc import Callable
from contextlib import closing
from uuid import UUID

import httpx
import psycopg
import pytest

from server.protocol import ids
from tests.fix_server import SCRIPTED, StartServer
from tests.fix_tally import Tally
from tests.support.attached import HTTP, P2_SECONDS, retrieve
from tests.support.eventually import eventually
from tests.support.invariants import find
from tests.support.server_process import MODEL, ServerProcess

PACE: dict[str, object] = {**SCRIPTED, "scripted_tokens": 3000, "scripted_step_seconds": 0.02}
PATIENCE_S = 60.0

HISTORY = "history that cannot be decoded"
ENDLESS = "times that Python does not have"
"""Which harms nothing."""
POISONS = {
    "request of another release": 'update responses set request = \'{"service_tier": "flex"}\' where id = %s',
    "request that is no object": "update responses set request = '17' where id = %s",
    "asked that cannot be decoded": "update responses set asked = '{\"model\": 5}' where id = %s",
    "item of an unknown role": (
        'update items set payload = \'{"type": "message", "role": "martian"}\' where response_id = %s'
    ),
    HISTORY: (
        "update items set payload = '[]'"
        " where response_id = (select previous_id from responses where id = %s)"
    ),
    "event of an unknown kind": "update response_events_hot set kind = 99 where response_id = %s",
    "deltas that are no JSON": "update response_events_hot set kind = 1, body = '[' where response_id = %s",
    "event that is no JSON": "update response_events_hot set body = '{' where response_id = %s",
    "tokens cut short": "update response_events_hot set token_ids = '\\x0102' where response_id = %s",
    "event of a time that never was": "update response_events_hot set at = 'NaN' where response_id = %s",
    ENDLESS: "update responses set queued_at = 'infinity', first_token_at = '-infinity' where id = %s",
}
"""What was done by a later release, a damaged disk or a hand at the database."""
REPLICA = """
    insert into replicas (id, state, host, pid, version, revision, models, heartbeat_at, reading)
    values (gen_random_uuid(), 'alive', '', -1, '', '', '{}', 'infinity', '{null}')
"""
FORGET = [
    "delete from items where response_id = any(%s)",
    "delete from response_events_hot where response_id = any(%s)",
    "delete from response_streams where response_id = any(%s)",
    "delete from usage_ledger where response_id = any(%s)",
    "delete from responses where id = any(%s)",
]


def create(server: ServerProcess, **about: object) -> str:
    body = {"model": MODEL, "input": "Hello", "background": True, "max_output_tokens": 5, **about}
    identifier: str = HTTP.post(f"{server.api}/responses", json=body).raise_for_status().json()["id"]
    return identifier


def number(identifier: str) -> UUID:
    found = ids.parse_response_id(identifier)
    assert found is not None
    return found


def ready(server: ServerProcess) -> bool:
    return httpx.get(f"{server.url}/health/ready", timeout=PATIENCE_S).status_code == 200


@pytest.mark.faults
@pytest.mark.usefixtures("made_up_items")  # a page repeats poison of an output
def test_a_poison_row_in_any_table_of_the_queue_ends_its_own_response_alone(
    start_server: StartServer, database_url: str, tally: Tally
) -> None:
    servers = [start_server(max_running=1, **PACE) for _ in range(2)]
    one = servers[0]
    parent = create(one)
    eventually(lambda: retrieve(one, parent)["status"] == "incomplete")
    blockers = [create(one, max_output_tokens=3000) for _ in servers]
    eventually(lambda: all(retrieve(one, each)["status"] == "in_progress" for each in blockers))
    queued = {name: create(one, previous_response_id=parent if name == HISTORY else None) for name in POISONS}
    healthy = [create(one) for _ in range(4)] + [queued[ENDLESS]]
    poisoned = {name: number(each) for name, each in queued.items()}
    bad = [number(parent), *poisoned.values()]
    with closing(psycopg.connect(database_url, autocommit=True)) as connection:
        for name, statement in POISONS.items():
            done = connection.execute(statement, (poisoned[name],))
            assert done.rowcount > 0, name
        connection.execute(REPLICA)
        for each in blockers:
            HTTP.post(f"{one.api}/responses/{each}/cancel").raise_for_status()
        statuses: Callable[[], dict[UUID, str]] = lambda: dict(  # noqa: E731
            connection.execute("select id, status from responses").fetchall()
        )
        ended_alone = [each for name, each in poisoned.items() if name != ENDLESS]
        eventually(lambda: all(statuses()[each] == "failed" for each in ended_alone), within=P2_SECONDS)
        eventually(lambda: all(retrieve(one, each)["status"] == "incomplete" for each in healthy))
        assert [server.has_ended for server in servers] == [False, False]
        assert all(map(ready, servers))
        after = [create(server) for server in servers]
        eventually(lambda: all(retrieve(one, each)["status"] == "incomplete" for each in after))
        assert connection.execute("select sum(deaths) from responses").fetchone() == (0,)
        reported = {violation.response_id for violation in find(database_url)}
        assert reported <= set(bad)
        read_each(one, queued)
        listed = httpx.get(f"{one.api}/responses?limit=100", timeout=PATIENCE_S).raise_for_status().json()
        assert {*healthy, *after, *blockers} <= {each["id"] for each in listed["data"]}
        forget(connection, bad)
    tally["F27", "kinds of poison row that ended their own response alone"] += len(ended_alone)


def read_each(server: ServerProcess, queued: dict[str, str]) -> None:
    """Whoever asks for one of them is told of an error, and the server goes on."""
    for identifier in queued.values():
        for address in (identifier, f"{identifier}?stream=true", f"{identifier}/input_items"):
            answer = httpx.get(f"{server.api}/responses/{address}", timeout=PATIENCE_S)
            assert answer.status_code in (200, 500, 503), answer.text


def forget(connection: psycopg.Connection, responses: list[UUID]) -> None:
    """For the check at the end, which would report each of them."""
    for statement in FORGET:
        connection.execute(statement, (responses,))
    connection.execute("delete from replicas where pid = -1")
