"""What responses cost, and what keys and tenants have spent."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import pytest

from server.administration.actor import Actor
from server.administration.key_changes import create_key, rotate_key
from server.caller import Limits, Period
from server.limits.budgets import Budgets
from server.limits.disk_space import Disk
from server.maintenance import retention
from server.protocol.administration.requests import CreateKey
from server.protocol.ids import new_uuid
from server.protocol.responses.response import Ending, ResponseFacts
from server.store.administration import budget_standings, ledger, model_prices, spend, stored_keys
from server.store.administration.budget_standings import BudgetOwner, NewReservation, Standing
from server.store.administration.model_prices import StoredPrice
from server.store.cluster.leases import mark_stopped, register_replica
from server.store.database import Connection, Database
from tests.support.builders import insert_response

NOW = datetime.now(UTC).replace(hour=12)
ACTOR = Actor("user:tests")


def end(
    connection: Connection,
    key: str | None = None,
    *,
    at: datetime = NOW,
    model: str = "m",
    response: UUID | None = None,
) -> None:
    """Meters a response of 100 tokens: 60 of its prompt, 20 of them cached, and 40 of its output."""
    ending = Ending(
        status="completed",
        first_token_at=at,
        finished_at=at,
        input_tokens=60,
        cached_tokens=20,
        output_tokens=40,
        reasoning_tokens=0,
    )
    ledger.record_usage(
        connection,
        [
            (
                ledger.LedgerEntry(
                    facts=ResponseFacts(
                        tenant="acme",
                        id=response or new_uuid(),
                        created_at=at,
                        model=model,
                        background=False,
                        key_id=key,
                    ),
                    stored=False,
                ),
                ending,
            )
        ],
    )


def standing(connection: Connection, tenant: str, key: str | None, period: Period) -> Standing:
    (found,) = budget_standings.standings(connection, [BudgetOwner(tenant, key, period)])
    return found


def set_price(connection: Connection, valid_from: datetime, factor: int = 1) -> None:
    amounts = (Decimal(factor), Decimal("0.1") * factor, Decimal(2) * factor)
    model_prices.set_price(connection, StoredPrice("m", valid_from, *amounts))


def costs(connection: Connection) -> list[Decimal | None]:
    return list(connection.exec_driver_sql("select cost from usage_ledger order by finished_at").scalars())


def test_a_response_costs_what_its_model_cost_when_it_ended(database: Database) -> None:
    with database.begin() as connection:
        end(connection, at=NOW - timedelta(days=3))
        set_price(connection, NOW - timedelta(days=2))
        set_price(connection, NOW, factor=10)
        end(connection, at=NOW - timedelta(days=1))
        end(connection, at=NOW)
        end(connection, at=NOW + timedelta(seconds=1), model="another")
        one = Decimal("0.000122")  # 40 + 20 * 0.1 + 40 * 2 of a million
        assert costs(connection) == [None, one, 10 * one, None]
        assert standing(connection, "acme", None, "total").spent_cost == 11 * one


@pytest.mark.parametrize(("period", "tokens"), [("day", 100), ("month", 200), ("total", 300)])
def test_a_period_has_what_was_spent_in_it(database: Database, period: Period, tokens: int) -> None:
    with database.begin() as connection:
        today = standing(connection, "acme", None, "day").today
        noon = datetime(today.year, today.month, today.day, 12, tzinfo=UTC)
        end(connection, at=noon)
        end(connection, at=noon.replace(day=2 if today.day == 1 else 1))
        end(connection, at=noon - timedelta(days=40))
        assert standing(connection, "acme", None, period).spent_tokens == tokens
        assert standing(connection, "other", None, period).spent_tokens == 0


def test_a_rotated_key_goes_on_with_the_budget_of_the_first(database: Database) -> None:
    with database.begin() as connection:
        first = create_key(connection, ACTOR, CreateKey(tenant="acme", budget_tokens=5)).id
        second = rotate_key(connection, ACTOR, first, timedelta(hours=1)).id
        third = rotate_key(connection, ACTOR, second, timedelta(0)).id
        for key in (first, second, third, None):
            end(connection, key)
        assert standing(connection, "acme", first, "total").spent_tokens == 300
        assert standing(connection, "acme", "", "total").spent_tokens == 100
        assert stored_keys.limits_of(connection, "acme", third).counted_as == first
        assert stored_keys.limits_of(connection, "acme", third).key == Limits(budget_tokens=5)


def test_many_rows_of_a_key_and_day_are_folded_into_one(database: Database) -> None:
    with database.begin() as connection:
        now = datetime.now(UTC)
        for _ in range(spend.FOLD_ROWS + 1):
            end(connection, at=now)
        for _ in range(2):
            end(connection, "k", at=now)
            end(connection, "k", at=now - timedelta(days=1))
        before = standing(connection, "acme", None, "total")
        assert not spend.fold(connection)
        assert standing(connection, "acme", None, "total") == before
        rows = connection.exec_driver_sql("select key_id, count(*) from spend group by key_id, day").all()
    assert sorted(map(tuple, rows)) == [("", 1), ("k", 1), ("k", 2)]


def test_retention_takes_nothing_from_a_total_budget(database: Database) -> None:
    with database.begin() as connection:
        for days in (0, 0, 40, 400, 400):
            end(connection, "k", at=datetime.now(UTC) - timedelta(days=days))
        before = [standing(connection, "acme", key, "total") for key in ("k", None)]
    retention.fold(database)
    retention.purge(database, Disk(None, None), 0)
    retention.remove_old(database, 1)
    retention.fold(database)
    with database.begin() as connection:
        assert len(costs(connection)) == 2
        assert [standing(connection, "acme", key, "total") for key in ("k", None)] == before
        assert [budget.spent_tokens for budget in before] == [500, 500]


def _end_and_fail(database: Database) -> None:
    with database.begin() as connection:
        end(connection)
        raise ZeroDivisionError


def test_a_lost_transaction_spends_nothing(database: Database) -> None:
    with pytest.raises(ZeroDivisionError):
        _end_and_fail(database)
    with database.begin() as connection:
        assert standing(connection, "acme", None, "total").spent_tokens == 0


def reserve(connection: Connection, replica: UUID, key: str = "", *, stored: bool = False) -> UUID:
    """Reserves 100 tokens for a response without a row."""
    response = new_uuid()
    new = NewReservation(response_id=response, stored=stored, tokens=100, cost=Decimal("0.5"))
    budget_standings.reserve(connection, "acme", key, replica, [new])
    return response


def new_replica(connection: Connection) -> UUID:
    return register_replica(
        connection, host="h", pid=1, version="1", revision="0001", role="all", models=["m"]
    )


def test_the_end_of_a_response_puts_what_it_used_in_place_of_what_it_reserved(database: Database) -> None:
    with database.begin() as connection:
        replica = new_replica(connection)
        ends, runs = reserve(connection, replica, "k"), reserve(connection, replica, "other")
        assert standing(connection, "acme", "k", "day").reserved_tokens == 100
        before = standing(connection, "acme", None, "day")
        assert (before.reserved_tokens, before.reserved_cost) == (200, Decimal(1))
        end(connection, "k", response=ends, at=datetime.now(UTC))
        after = standing(connection, "acme", None, "day")
        assert (after.spent_tokens, after.reserved_tokens) == (100, 100)
        assert not budget_standings.has_reservation(connection, "acme", ends)
        budget_standings.release(connection, "acme", [runs])
        assert standing(connection, "acme", None, "day").reserved_tokens == 0


def test_a_replica_that_is_gone_holds_no_budget_for_responses_without_a_row(database: Database) -> None:
    with database.begin() as connection:
        gone, lives = new_replica(connection), new_replica(connection)
        lost = reserve(connection, gone)
        reserve(connection, lives)
        mark_stopped(connection, gone)
        assert standing(connection, "acme", None, "total").reserved_tokens == 100
        assert not budget_standings.delete_over(connection)
        assert not budget_standings.has_reservation(connection, "acme", lost)
        assert standing(connection, "acme", None, "total").reserved_tokens == 100


def test_an_unfinished_response_keeps_its_reservation_when_its_replica_is_gone(database: Database) -> None:
    with database.begin() as connection:
        gone = new_replica(connection)
        response = new_uuid()
        insert_response(connection, gone, id=response, tenant="acme")
        new = NewReservation(response_id=response, stored=True, tokens=100, cost=Decimal(0))
        budget_standings.reserve(connection, "acme", "", gone, [new])
        mark_stopped(connection, gone)
        budget_standings.release(connection, "acme", [response])
        budget_standings.delete_over(connection)
        assert standing(connection, "acme", None, "total").reserved_tokens == 100
        connection.exec_driver_sql("update responses set status = 'failed'")
        assert standing(connection, "acme", None, "total").reserved_tokens == 0


def test_a_further_turn_reserves_its_prompt_while_the_budget_has_room_for_it(database: Database) -> None:
    with database.begin() as connection:
        replica = new_replica(connection)
        key = create_key(connection, ACTOR, CreateKey(tenant="acme", budget_tokens=150)).id
        response = reserve(connection, replica, key)
    budget = Budgets(database, replica)
    assert [budget.reserve_turn("acme", key, response, "m", 30) for _ in range(2)] == [True, False]
    with database.begin() as connection:
        assert standing(connection, "acme", key, "month").reserved_tokens == 130
    assert budget.reserve_turn("acme", key, new_uuid(), "m", 10**6)  # it was accepted without one
