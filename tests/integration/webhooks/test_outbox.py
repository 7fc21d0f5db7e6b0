"""The outbox on a real Postgres: which ends are in it, who claims what, how it is emptied."""

from collections import Counter
from datetime import timedelta
from uuid import UUID

import pytest

from server.protocol.ids import new_uuid
from server.sealing.cipher import Seal
from server.store.content import deletion
from server.store.content.responses import ResponseKey
from server.store.database import Database
from server.store.webhooks import endpoints, outbox
from server.store.webhooks.outbox import AttemptResult, Claimed
from tests.support.builders import TENANT, register
from tests.support.webhooks import change, deliveries, end_response, make_endpoint

SEAL = Seal.of_this_process()
LEASE = timedelta(seconds=30)
LATER = timedelta(seconds=60)


def claim_all(database: Database, endpoints_: list[UUID], limit: int = 100, room: int = 100) -> list[Claimed]:
    with database.begin() as connection:
        return outbox.claim(connection, limit=limit, lease=LEASE, room=dict.fromkeys(endpoints_, room))


def settle(database: Database, claimed: Claimed, error: str | None, pause: timedelta = LATER) -> int:
    status = 200 if error is None else 500
    result = AttemptResult(claimed.tenant, claimed.id, claimed.attempt, status, error, pause)
    with database.begin() as connection:
        return outbox.settle(connection, [result])


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled", "incomplete"])
def test_an_end_is_in_the_outbox_for_each_endpoint_that_wants_it(database: Database, status: str) -> None:
    replica = register(database)
    with database.begin() as connection:
        first, second = (make_endpoint(connection, SEAL).stored.id for _ in range(2))
        others = frozenset({"response.completed", "response.failed"} - {f"response.{status}"})
        make_endpoint(connection, SEAL, event_types=others)
        make_endpoint(connection, SEAL, tenant="other")
        response = end_response(connection, replica, status)
    found = deliveries(database, "tenant, endpoint_id, response_id, type, event_id")
    assert {row[:4] for row in found} == {
        (TENANT, endpoint, response, f"response.{status}") for endpoint in (first, second)
    }
    assert len({row[4] for row in found}) == 1, "the event is the same one"


@pytest.mark.parametrize(
    ("background", "prepare", "expected"),
    [
        (True, "", 2),
        (False, "", 1),
        (True, "deleted_at = clock_timestamp()", 0),
        (False, "choice = 0", 0),
    ],
)
def test_foreground_responses_are_for_endpoints_that_want_all_and_chats_and_deleted_ones_for_none(
    database: Database, background: bool, prepare: str, expected: int
) -> None:
    replica = register(database)
    with database.begin() as connection:
        make_endpoint(connection, SEAL)
        make_endpoint(connection, SEAL, all_responses=True)
        end_response(connection, replica, background=background, prepare=prepare)
    assert len(deliveries(database, "id")) == expected


def test_what_has_not_ended_or_is_not_stored_is_not_in_the_outbox(database: Database) -> None:
    replica = register(database)
    with database.begin() as connection:
        make_endpoint(connection, SEAL, all_responses=True)
        response = end_response(connection, replica)
        outbox.enqueue(connection, [])
        outbox.enqueue(connection, [ResponseKey(TENANT, new_uuid())])
        outbox.enqueue(connection, [ResponseKey("other", response)])
        connection.exec_driver_sql("update responses set status = 'in_progress', finished_at = null")
        outbox.enqueue(connection, [ResponseKey(TENANT, response)])
    assert len(deliveries(database, "id")) == 1


def test_an_end_that_is_rolled_back_has_no_delivery(database: Database) -> None:
    replica = register(database)
    with database.begin() as connection:
        make_endpoint(connection, SEAL)
    with database.begin() as connection:
        end_response(connection, replica)
        connection.rollback()
    assert deliveries(database, "id") == []


def test_two_claims_at_the_same_time_share_nothing(database: Database) -> None:
    replica = register(database)
    with database.begin() as connection:
        endpoint = make_endpoint(connection, SEAL).stored.id
        for _ in range(6):
            end_response(connection, replica)
    with database.begin() as one, database.begin() as other:
        first = outbox.claim(one, limit=3, lease=LEASE, room={endpoint: 10})
        second = outbox.claim(other, limit=10, lease=LEASE, room={endpoint: 10})
    assert len(first) == 3
    assert len({claimed.id for claimed in first + second}) == 6
    assert claim_all(database, [endpoint]) == []


def test_what_a_dead_process_had_claimed_is_due_when_its_claim_ends(database: Database) -> None:
    replica = register(database)
    with database.begin() as connection:
        endpoint = make_endpoint(connection, SEAL).stored.id
        end_response(connection, replica)
    (first,) = claim_all(database, [endpoint])
    change(database, "update webhook_deliveries set next_attempt_at = clock_timestamp()")
    (second,) = claim_all(database, [endpoint])
    assert (second.id, first.attempt, second.attempt) == (first.id, 1, 2)
    settle(database, first, "late")
    assert deliveries(database, "last_error, attempts") == [(None, 2)], "it is another's now"
    settle(database, first, None)
    assert deliveries(database, "delivered_at is not null, next_attempt_at") == [(True, None)]
    settle(database, second, "after it was delivered")
    assert deliveries(database, "delivered_at is not null, next_attempt_at") == [(True, None)]


def test_claims_take_turns_by_tenant_and_by_endpoint(database: Database) -> None:
    replica = register(database)
    with database.begin() as connection:
        busy = [make_endpoint(connection, SEAL, tenant="busy").stored.id for _ in range(2)]
        quiet = make_endpoint(connection, SEAL, tenant="quiet").stored.id
        for _ in range(10):
            end_response(connection, replica, tenant="busy")
        for _ in range(3):
            end_response(connection, replica, tenant="quiet")
    claimed = claim_all(database, [*busy, quiet], limit=6)
    assert Counter(one.endpoint_id for one in claimed) == {quiet: 3, busy[0]: 2, busy[1]: 1} or Counter(
        one.tenant for one in claimed
    ) == {"quiet": 3, "busy": 3}


def test_an_endpoint_gets_no_more_attempts_than_it_has_room_for(database: Database) -> None:
    replica = register(database)
    with database.begin() as connection:
        first, second = (make_endpoint(connection, SEAL).stored.id for _ in range(2))
        for _ in range(4):
            end_response(connection, replica)
        room = {first: 1, second: 3}
        claimed = outbox.claim(connection, limit=100, lease=LEASE, room=room)
    assert Counter(one.endpoint_id for one in claimed) == room


def test_due_endpoints_are_those_that_are_enabled_and_have_something_due(database: Database) -> None:
    replica = register(database)
    with database.begin() as connection:
        due, waiting, disabled, _idle = (
            make_endpoint(connection, SEAL, tenant=f"t{number}").stored.id for number in range(4)
        )
        for number in range(3):
            end_response(connection, replica, tenant=f"t{number}")
        endpoints.set_disabled(connection, disabled, "because")
    claim_all(database, [waiting])
    with database.begin() as connection:
        assert outbox.due_endpoints(connection) == [due]


def test_a_delivery_is_given_up_when_its_time_is_over(database: Database) -> None:
    replica = register(database)
    with database.begin() as connection:
        endpoint = make_endpoint(connection, SEAL).stored.id
        end_response(connection, replica)
    assert deliveries(database, "give_up_at - created_at > interval '71 hours'") == [(True,)]
    (claimed,) = claim_all(database, [endpoint])
    assert settle(database, claimed, "HTTP status 500", timedelta(hours=71)) == 0
    change(database, "update webhook_deliveries set next_attempt_at = clock_timestamp()")
    (claimed,) = claim_all(database, [endpoint])
    assert settle(database, claimed, "HTTP status 500", timedelta(hours=73)) == 1
    shown = "given_up_at is not null, next_attempt_at, attempts, last_status, last_error"
    assert deliveries(database, shown) == [(True, None, 2, 500, "HTTP status 500")]


def test_the_oldest_of_too_many_and_those_of_deleted_endpoints_are_given_up(database: Database) -> None:
    replica = register(database)
    with database.begin() as connection:
        kept, deleted, late = (
            make_endpoint(connection, SEAL, tenant=f"t{number}").stored.id for number in range(3)
        )
        newest = [end_response(connection, replica, tenant="t0") for _ in range(5)][3:]
        end_response(connection, replica, tenant="t1")
        end_response(connection, replica, tenant="t2")
        endpoints.delete_endpoint(connection, deleted)
    update = "update webhook_deliveries set give_up_at = clock_timestamp() where endpoint_id = '{}'"
    change(database, update.format(late))
    with database.begin() as connection:
        given_up = {
            row.endpoint_id: (row.deliveries, row.reason) for row in outbox.give_up_unwanted(connection, 2)
        }
        assert outbox.give_up_unwanted(connection, 2) == []
    assert given_up == {kept: (3, outbox.TOO_MANY), deleted: (1, outbox.DELETED), late: (1, outbox.LATE)}
    waiting = [row[0] for row in deliveries(database, "response_id, given_up_at") if row[1] is None]
    assert waiting == newest


def test_what_has_ended_is_kept_for_a_week(database: Database) -> None:
    replica = register(database)
    with database.begin() as connection:
        make_endpoint(connection, SEAL)
        made = [end_response(connection, replica) for _ in range(5)]
    ended = "update webhook_deliveries set next_attempt_at = null, {} = clock_timestamp() - interval '{}'"
    ended += " where response_id = '{}'"
    for column, age, response in (
        ("delivered_at", "6 days", made[0]),
        ("delivered_at", "8 days", made[1]),
        ("given_up_at", "6 days", made[2]),
        ("given_up_at", "8 days", made[3]),
    ):
        change(database, ended.format(column, age, response))
    with database.begin() as connection:
        assert not outbox.delete_ended(connection)
    assert [row[0] for row in deliveries(database, "response_id")] == [made[0], made[2], made[4]]


def test_what_is_old_is_deleted_in_batches(database: Database) -> None:
    with database.begin() as connection:
        endpoint = make_endpoint(connection, SEAL).stored.id
    plant(database, endpoint, 1010, "delivered_at", "8 days")
    with database.begin() as connection:
        assert outbox.delete_ended(connection)
        assert not outbox.delete_ended(connection)
    assert deliveries(database, "id") == []


def plant(database: Database, endpoint: UUID, count: int, column: str, age: str) -> None:
    """Deliveries that ended so long ago, each at another time."""
    change(
        database,
        "insert into webhook_deliveries (tenant, endpoint_id, event_id, response_id, type, give_up_at,"  # noqa: S608
        f" {column}) select '{TENANT}', '{endpoint}', gen_random_uuid(), gen_random_uuid(),"
        f" 'response.completed', now(), now() - interval '{age}' + make_interval(secs => n / 1000.0)"
        f" from generate_series(1, {count}) n",
    )


def test_what_was_given_up_is_delivered_again_on_request(database: Database) -> None:
    replica = register(database)
    with database.begin() as connection:
        endpoint = make_endpoint(connection, SEAL).stored.id
        for _ in range(3):
            end_response(connection, replica)
    first, *_ = claim_all(database, [endpoint])
    settle(database, first, None)
    change(
        database,
        "update webhook_deliveries set next_attempt_at = null, given_up_at = clock_timestamp()"
        " where delivered_at is null",
    )
    with database.begin() as connection:
        assert outbox.redeliver(connection, TENANT, endpoint, None, 1) == 1
        assert outbox.redeliver(connection, TENANT, endpoint, None, 10) == 1
        assert outbox.redeliver(connection, TENANT, endpoint, first.id, 10) == 1
        assert outbox.redeliver(connection, "other", endpoint, first.id, 10) == 0
    assert len(claim_all(database, [endpoint])) == 3


def test_pending_deliveries_are_counted_with_the_age_of_the_oldest(database: Database) -> None:
    replica = register(database)
    with database.begin() as connection:
        assert outbox.read_pending(connection) == (0, 0.0)
        make_endpoint(connection, SEAL)
        end_response(connection, replica)
        end_response(connection, replica)
        earlier = "update webhook_deliveries set created_at = created_at - interval '1 hour'"
        connection.exec_driver_sql(earlier)
        count, age = outbox.read_pending(connection)
    assert count == 2
    assert 3600 <= age < 3660


def test_a_response_that_is_deleted_after_its_end_keeps_its_delivery(database: Database) -> None:
    replica = register(database)
    with database.begin() as connection:
        make_endpoint(connection, SEAL)
        response = end_response(connection, replica)
        assert deletion.delete(connection, TENANT, response) is False
    assert len(deliveries(database, "id")) == 1
