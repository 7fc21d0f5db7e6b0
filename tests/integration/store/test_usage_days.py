"""Sums of days: equal to the ledger to the last digit, at any moment and whoever folds."""

import random
import threading
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from server.protocol.ids import new_uuid
from server.protocol.responses.response import Ending, ResponseFacts
from server.store.administration import ledger, model_prices, usage_days
from server.store.administration.model_prices import StoredPrice
from server.store.database import Connection, Database

NOW = datetime.now(UTC)
STATUSES = ("completed", "failed", "incomplete", "cancelled")
_SUMS = (
    "sum(input_tokens), sum(cached_tokens), sum(output_tokens), sum(reasoning_tokens), coalesce(sum(cost), 0)"
)
LEDGER = f"""
    select cast(finished_at at time zone 'utc' as date), tenant, key_id, model, kind, status,
        error_code, count(*), {_SUMS}, count(*) filter (where cost is null)
    from usage_ledger group by 1, 2, 3, 4, 5, 6, 7
"""  # noqa: S608 - constants, here and below
DAYS = f"""
    select day, tenant, key_id, model, kind, status, error_code, sum(responses), {_SUMS}, sum(unpriced)
    from admin.usage_daily group by 1, 2, 3, 4, 5, 6, 7
"""  # noqa: S608
USERS_OF_LEDGER = f"""
    select cast(finished_at at time zone 'utc' as date), tenant, end_user, count(*), {_SUMS}
    from usage_ledger where end_user is not null group by 1, 2, 3
"""  # noqa: S608
_USERS = "select day, tenant, end_user, sum(responses), {sums} from admin.users_daily group by 1, 2, 3"
USERS = _USERS.format(sums=_SUMS)


def check_sums(connection: Connection) -> None:
    for view, lines in ((DAYS, LEDGER), (USERS, USERS_OF_LEDGER)):
        shown, metered = (set(connection.exec_driver_sql(query)) for query in (view, lines))
        assert shown == metered


def end(connection: Connection, chance: random.Random) -> None:
    """Meters a response of one of a few tenants, keys, users, models and days."""
    status: Any = chance.choice(STATUSES)
    at = NOW - timedelta(hours=chance.randrange(72))
    ending = Ending(
        status=status,
        first_token_at=at,
        finished_at=at,
        input_tokens=chance.randrange(1000),
        cached_tokens=chance.randrange(10),
        output_tokens=chance.randrange(1000),
        reasoning_tokens=chance.randrange(10),
        error_code="server_error" if status == "failed" else None,
    )
    usage = ledger.LedgerEntry(
        facts=ResponseFacts(
            tenant=chance.choice(["acme", "other"]),
            id=new_uuid(),
            created_at=at,
            model=chance.choice(["m", "free"]),
            background=chance.random() < 0.5,
            key_id=chance.choice([None, "k1", "k2"]),
            kind=chance.choice(["response", "chat", "completion"]),
            end_user=chance.choice([None, "u1", "u2", "u3"]),
        ),
        stored=chance.random() < 0.5,
    )
    ledger.record_usage(connection, [(usage, ending)])


def test_sums_are_those_of_the_ledger_before_and_after_each_fold(database: Database) -> None:
    chance = random.Random(7)
    with database.begin() as connection:
        price = StoredPrice(
            "m", NOW - timedelta(days=9), Decimal("0.123457"), Decimal("0.01"), Decimal("1.7")
        )
        model_prices.set_price(connection, price)
    for _ in range(4):
        with database.begin() as connection:
            for _ in range(60):
                end(connection, chance)
            check_sums(connection)
        with database.begin() as connection:
            usage_days.fold(connection)
            check_sums(connection)
    with database.begin() as connection:
        left = connection.exec_driver_sql("select count(*) from usage_changes").scalar_one()
        assert left < usage_days.FOLD_ROWS


def test_replicas_that_fold_while_responses_end_lose_and_double_nothing(database: Database) -> None:
    failures: list[Exception] = []
    ended = threading.Event()

    def run(work: Any) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - raised in the test's own thread
            failures.append(error)

    def meter(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(40):
            with database.begin() as connection:
                for _ in range(5):
                    end(connection, chance)

    def fold() -> None:
        while not ended.is_set():
            with database.begin() as connection:
                usage_days.fold(connection)

    writers = [threading.Thread(target=run, args=(lambda seed=seed: meter(seed),)) for seed in range(3)]
    folders = [threading.Thread(target=run, args=(fold,)) for _ in range(2)]
    for thread in (*writers, *folders):
        thread.start()
    for thread in writers:
        thread.join()
    ended.set()
    for thread in folders:
        thread.join()
    assert failures == []
    with database.begin() as connection:
        check_sums(connection)
        assert connection.exec_driver_sql("select sum(responses) from usage_days").scalar_one() > 0


@pytest.mark.parametrize(("ledger_begins", "left"), [(3, {1, 3}), (0, {1, 3, 9})])
def test_users_are_forgotten_with_the_ledger(database: Database, ledger_begins: int, left: set[int]) -> None:
    with database.begin() as connection:
        connection.exec_driver_sql(
            "insert into user_days select 'acme', 'u', cast(now() at time zone 'utc' as date) - n,"
            " 1, 1, 0, 1, 0, 0, 0 from unnest(array[1, 3, 9]) as n"
        )
        if ledger_begins:
            end(connection, random.Random(3))
            connection.exec_driver_sql(
                "update usage_ledger set finished_at = now() - %(days)s * interval '1 day'",
                {"days": ledger_begins},
            )
        usage_days.forget_users(connection)
        ages = "select cast(now() at time zone 'utc' as date) - day from user_days"
        assert set(connection.exec_driver_sql(ages).scalars()) == left
