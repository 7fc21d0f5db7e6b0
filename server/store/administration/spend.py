"""Tokens and costs of each key by day in UTC, as the sum of a row for each response.

The statement that meters a response inserts its row, in the transaction of its end. With a counter for each
key all replicas' commits would wait for the lock of one row. `fold` replaces many rows of a key and day by
their sum.
"""

from typing import Final

from sqlalchemy import Connection, text

FOLD_ROWS = 64
"""Rows of a key on the current day above which they are folded; of a day that is over, all are."""
_MAX_FOLDED = 10_000
_FOLDED_DAYS = 7
"""Days in which rows are looked for, by the index of days."""
ADD: Final = """
    insert into spend (tenant, key_id, day, tokens, cost)
    select tenant, coalesce((select coalesce(first_key, id) from api_keys where id = key_id), key_id, ''),
        cast(finished_at at time zone 'utc' as date), input_tokens + output_tokens, coalesce(cost, 0)
    from metered
"""
"""SQL that adds the ledger's rows in the CTE `metered`. Rotated keys count as the first one."""
_TODAY = "cast(clock_timestamp() at time zone 'utc' as date)"
_FOLD = text(f"""
    with many as (
        select tenant, key_id, day from spend where day >= {_TODAY} - cast(:days as integer)
        group by tenant, key_id, day
        having count(*) > case when day < {_TODAY} then 1 else cast(:rows as integer) end
    ), gone as (
        delete from spend where (tenant, key_id, day, id) in (
            select tenant, key_id, day, id from spend where (tenant, key_id, day) in (select * from many)
            limit :limit for update skip locked)
        returning tenant, key_id, day, tokens, cost
    ), sums as (
        insert into spend (tenant, key_id, day, tokens, cost)
        select tenant, key_id, day, sum(tokens), sum(cost) from gone group by tenant, key_id, day)
    select count(*) from gone
""")


def fold(connection: Connection) -> bool:
    """Replaces many rows of a key and day by their sum, but locked ones; whether there may be more."""
    parameters = {"rows": FOLD_ROWS, "days": _FOLDED_DAYS, "limit": _MAX_FOLDED}
    folded: int = connection.execute(_FOLD, parameters).scalar_one()
    return folded == _MAX_FOLDED
