from collections.abc import Collection, Sequence
from uuid import UUID

from server.caller import TenantSettings
from server.protocol.ids import new_uuid
from server.store.administration import tenants
from server.store.cluster import claims
from server.store.content.responses import ResponseKey, StoredResponse
from server.store.database import Database
from tests.support.builders import (
    TENANT,
    accept,
    finish,
    insert_response,
    kill,
    make_echo,
    make_ending,
    register,
)

CAP = 3


def hopeless(database: Database, me: UUID, limit: int = 10) -> set[UUID]:
    with database.begin() as connection:
        claimed = claims.claim_to_end(connection, me, most_deaths=CAP, limit=limit)
    return {stored.id for stored in claimed}


def waiting(
    database: Database,
    me: UUID,
    limit: int = 10,
    models: Sequence[str] = ("model",),
    full: Collection[str] = (),
) -> list[UUID]:
    with database.begin() as connection:
        claimed = claims.claim_waiting(connection, me, models=models, full=full, most_deaths=3, limit=limit)
    return [stored.id for stored in claimed]


def test_what_a_replica_leaves_is_nobodys_and_foreground_responses_are_claimed_to_be_ended(
    database: Database,
) -> None:
    dead, stopped, alive, me = (register(database) for _ in range(4))
    left = {dead: new_uuid(), stopped: new_uuid(), alive: new_uuid(), new_uuid(): new_uuid()}
    ended = new_uuid()
    with database.begin() as connection:
        for replica, response in left.items():
            insert_response(connection, replica, id=response)
        insert_response(connection, dead, id=ended)
        finish(connection, TENANT, ended, dead, 1, make_ending())
        connection.exec_driver_sql("update replicas set state = 'stopped' where id = %s", (stopped,))
    assert hopeless(database, me) == set()
    kill(database, dead)
    assert hopeless(database, me) == {id_ for replica, id_ in left.items() if replica != alive}
    assert hopeless(database, me) == set()
    with database.begin() as connection:
        assert {place.id for place in claims.owned_responses(connection, alive)} == {left[alive]}


def test_no_more_are_claimed_than_asked_for_and_none_by_two(database: Database) -> None:
    for _ in range(5):
        accept(database, new_uuid(), background=True)
    first, second = register(database), register(database)
    with database.begin() as one, database.begin() as two:
        ours, theirs = (
            claims.claim_waiting(connection, replica, models=["model"], full=(), most_deaths=3, limit=3)
            for connection, replica in ((one, first), (two, second))
        )
    assert (len(ours), len(theirs)) == (3, 2)
    assert not {stored.id for stored in ours} & {stored.id for stored in theirs}


def test_waiting_responses_are_claimed_in_their_order_and_only_for_models_that_are_served(
    database: Database,
) -> None:
    me = register(database)
    runs = [accept(database, me, background=True) for _ in range(3)]
    other = new_uuid()
    with database.begin() as connection:
        insert_response(connection, me, id=other, echo=make_echo(model="other", background=True))
        connection.exec_driver_sql("update responses set priority = -1 where id = %s", (runs[2].facts.id,))
    assert waiting(database, me, limit=1) == [runs[2].facts.id]
    assert waiting(database, me) == [runs[0].facts.id, runs[1].facts.id]
    assert waiting(database, me, models=("other",)) == [other]


def test_the_one_response_of_a_tenant_is_claimed_next_whatever_another_has_queued(database: Database) -> None:
    me = register(database)
    many = [accept(database, me, tenant="busy", background=True).facts.id for _ in range(60)]
    one = accept(database, me, tenant="quiet", background=True).facts.id
    assert set(waiting(database, me, limit=2)) == {many[0], one}
    assert waiting(database, me, limit=1) == [many[1]]


def test_a_tenant_that_has_fewer_in_progress_is_next(database: Database) -> None:
    first, second = register(database), register(database)
    busy = [accept(database, first, tenant="busy", background=True).facts.id for _ in range(12)]
    assert set(waiting(database, first, limit=4)) == set(busy[:4])
    quiet = [accept(database, first, tenant="quiet", background=True).facts.id for _ in range(3)]
    assert set(waiting(database, second, limit=3)) == set(quiet)
    assert set(waiting(database, second, limit=3)) == set(busy[4:7])


def test_an_urgent_priority_orders_only_the_responses_of_its_own_tenant(database: Database) -> None:
    me = register(database)
    urgent = [accept(database, me, tenant="busy", background=True).facts.id for _ in range(3)]
    with database.begin() as connection:
        connection.exec_driver_sql("update responses set priority = -100 where id = %s", (urgent[2],))
    one = accept(database, me, tenant="quiet", background=True).facts.id
    assert set(waiting(database, me, limit=2)) == {urgent[2], one}


def test_the_waiting_responses_of_one_tenant_are_counted_up_to_a_number(database: Database) -> None:
    for tenant in ("mine", "mine", "other"):
        accept(database, new_uuid(), tenant=tenant, background=True)
    with database.begin() as connection:
        assert [claims.count_waiting(connection, most, "mine") for most in (1, 9)] == [1, 2]


def test_a_full_tenant_is_passed_over(database: Database) -> None:
    me = register(database)
    accept(database, me, tenant="full", background=True)
    free = accept(database, me, tenant="free", background=True)
    assert waiting(database, me, full={"full"}) == [free.facts.id]


def test_a_tenant_has_no_more_on_a_replica_than_its_settings_allow(database: Database) -> None:
    for _ in range(5):
        accept(database, new_uuid(), background=True)
    with database.begin() as connection:
        tenants.insert_tenant(connection, TENANT, "", TenantSettings(max_unfinished=2))
    first, second = register(database), register(database)
    assert len(waiting(database, first, limit=1)) == 1
    assert len(waiting(database, first)) == 1
    assert waiting(database, first) == []
    assert len(waiting(database, second)) == 2


def test_a_background_response_outlives_its_replicas_up_to_the_limit(database: Database) -> None:
    run = accept(database, new_uuid(), background=True)
    for deaths in range(CAP):
        replica = register(database)
        assert hopeless(database, replica) == set()
        with database.begin() as connection:
            (stored,) = claims.claim_waiting(
                connection, replica, models=["model"], full=(), most_deaths=3, limit=1
            )
        assert isinstance(stored, StoredResponse)
        assert (stored.id, stored.attempt, stored.deaths) == (run.facts.id, deaths + 1, deaths)
        kill(database, replica)
    assert hopeless(database, register(database)) == {run.facts.id}


def test_what_is_handed_back_is_claimed_by_another_and_counts_as_no_death(database: Database) -> None:
    run = accept(database, new_uuid(), background=True)
    first, second = register(database), register(database)
    assert waiting(database, first) == [run.facts.id]
    place = ResponseKey(TENANT, run.facts.id)
    with database.begin() as connection:
        claims.release(connection, second, [place])
        assert claims.owned_responses(connection, first) == [place]
        claims.release(connection, first, [place])
        assert claims.owned_responses(connection, first) == []
    with database.begin() as connection:
        (stored,) = claims.claim_waiting(
            connection, second, models=["model"], full=(), most_deaths=3, limit=1
        )
    assert isinstance(stored, StoredResponse)
    assert (stored.attempt, stored.deaths) == (2, 0)


def test_what_is_handed_back_by_a_dead_engine_counts_as_a_death(database: Database) -> None:
    run = accept(database, new_uuid(), background=True)
    me = register(database)
    assert waiting(database, me) == [run.facts.id]
    with database.begin() as connection:
        claims.release(connection, me, [ResponseKey(TENANT, run.facts.id)], died=True)
        (stored,) = claims.claim_waiting(connection, me, models=["model"], full=(), most_deaths=3, limit=1)
    assert isinstance(stored, StoredResponse)
    assert (stored.attempt, stored.deaths) == (2, 1)


def test_a_wish_to_cancel_is_seen_by_the_owner_or_makes_the_waiting_one_claimed_to_be_ended(
    database: Database,
) -> None:
    me = register(database)
    running, queued = accept(database, me), accept(database, me, background=True)
    with database.begin() as connection:
        for run in (running, queued):
            claims.request_cancel(connection, "other", run.facts.id, "operator")
        assert claims.cancel_requested(connection, me) == []
        for run in (running, queued):
            claims.request_cancel(connection, TENANT, run.facts.id, "client_request")
        assert claims.cancel_requested(connection, me) == [(running.facts.id, "client_request")]
    assert hopeless(database, me) == {queued.facts.id}


def test_waiting_responses_are_counted_up_to_a_number(database: Database) -> None:
    for _ in range(3):
        accept(database, new_uuid(), background=True)
    with database.begin() as connection:
        assert [claims.count_waiting(connection, most) for most in (2, 10)] == [2, 3]
