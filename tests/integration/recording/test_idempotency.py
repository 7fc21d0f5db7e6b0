"""Requests that are sent again after the response that they began was lost with its process."""

import asyncio
from collections.abc import Iterator
from uuid import UUID

import pytest

from server.admission.idempotency import find_previous_attempt
from server.admission.prepare_runs import IdempotencyKey
from server.caller import Caller
from server.delivery.hub import Channel, Hub
from server.errors import Conflict
from server.protocol.ids import new_uuid
from server.store.content import idempotency_keys
from server.store.database import Database
from tests.support.builders import kill, register

CALLER = Caller("default", None)
SENT = IdempotencyKey("order-4711", bytes(32))


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    made = Database(database_url, pool_size=2)
    yield made
    made.close()


@pytest.fixture
def hub() -> Iterator[Hub]:
    loop = asyncio.new_event_loop()
    yield Hub(loop)
    loop.close()


def claim(database: Database, replica: UUID | None = None) -> None:
    """As of a response that is not stored."""
    with database.begin() as connection:
        use = (CALLER.tenant, SENT.key, SENT.digest, new_uuid())
        assert idempotency_keys.claim(connection, *use, replica)


def again(database: Database, hub: Hub) -> list[tuple[UUID, Channel]] | None:
    return find_previous_attempt(database, hub, CALLER, SENT, 1)


def test_response_that_was_lost_with_its_process_is_begun_anew(database: Database, hub: Hub) -> None:
    replica = register(database)
    claim(database)
    with pytest.raises(Conflict):
        again(database, hub)
    kill(database, replica)
    register(database)
    assert again(database, hub) is None
    claim(database)  # which finds the key free


def test_response_that_another_replica_may_be_generating_is_not_begun_twice(
    database: Database, hub: Hub
) -> None:
    replicas = [register(database) for _ in range(2)]
    claim(database)
    kill(database, replicas[0])
    with pytest.raises(Conflict):
        again(database, hub)


def test_response_of_a_dead_replica_is_begun_anew_by_one_that_is_older_than_its_key(
    database: Database, hub: Hub
) -> None:
    owner, _other = register(database), register(database)
    claim(database, owner)
    with pytest.raises(Conflict):
        again(database, hub)
    kill(database, owner)
    assert again(database, hub) is None
    claim(database, register(database))  # which finds the key free


def test_response_that_ended_is_not_begun_again(database: Database, hub: Hub) -> None:
    replica = register(database)
    claim(database)
    with database.begin() as connection:
        connection.exec_driver_sql(
            "insert into usage_ledger (tenant, response_id, model, status, stored, input_tokens,"
            " cached_tokens, output_tokens, reasoning_tokens, kind, background, attempt) select tenant,"
            " response_id, 'm', 'completed', false, 1, 0, 1, 0, 'response', false, 1 from idempotency_keys"
        )
    kill(database, replica)
    with pytest.raises(Conflict):
        again(database, hub)
