"""Sums of the usage ledger by day, and by end user and day, so that questions about usage need not read it.

The statement that meters a response inserts its row of `usage_changes`, in the transaction of its end. `fold`
moves these into the sums of `usage_days` and `user_days`. Readers add both, so figures are exact at any time.
"""

from typing import Final

from sqlalchemy import Connection, text

from server.store.tables import TOKENS

FOLD_ROWS = 64
"""Fewer changes are left for later."""
_MAX_FOLDED = 2_000
_LOCK = int.from_bytes(b"usgdays", "big")
"""Advisory lock, held until the end of the transaction: one replica folds at a time."""
_GROUPS = "tenant, day, key_id, model, kind, status, error_code"
_SUMS = ("responses", *TOKENS, "cost", "unpriced")
_COLUMNS = ", ".join(_SUMS)
_TOTALS = ", ".join(f"sum({name})" for name in _SUMS)
RETURNED: Final = (
    f"tenant, finished_at, key_id, model, kind, status, error_code, end_user, {', '.join(TOKENS)}, cost"
)
"""The columns of the ledger that ADD reads."""
ADD: Final = f"""
    insert into usage_changes ({_GROUPS}, end_user, {_COLUMNS})
    select tenant, cast(finished_at at time zone 'utc' as date), coalesce(key_id, ''), model, kind,
        status, coalesce(error_code, ''), coalesce(end_user, ''), count(*),
        {", ".join(f"sum({name})" for name in TOKENS)},
        coalesce(sum(cost), 0), count(*) filter (where cost is null)
    from metered group by 1, 2, 3, 4, 5, 6, 7, 8
"""
"""SQL that adds the ledger's rows in the CTE `metered`."""


def _add_to(table: str, groups: str, condition: str) -> str:
    sums = ", ".join(f"{name} = {table}.{name} + excluded.{name}" for name in _SUMS)
    return f"""
        insert into {table} ({groups}, {_COLUMNS})
        select {groups}, {_TOTALS} from gone where {condition} group by {groups} order by {groups}
        on conflict ({groups}) do update set {sums}
    """


_FOLD = text(f"""
    with gone as (
        delete from usage_changes where ctid = any (array(
            select ctid from usage_changes limit :limit for update skip locked))
        returning *
    ), by_day as ({_add_to("usage_days", _GROUPS, "true")}),
    by_user as ({_add_to("user_days", "tenant, end_user, day", "end_user <> ''")})
    select count(*) from gone
""")
_MAY_FOLD = text("""
    select count(*) >= :rows and pg_try_advisory_xact_lock(:lock)
    from (select from usage_changes limit :rows) as unfolded
""")
_FORGET_USERS = text("""
    delete from user_days
    where day < (select cast(min(finished_at) at time zone 'utc' as date) from usage_ledger)
""")


def fold(connection: Connection) -> bool:
    """Moves changes, if there are many, into the sums of their days; whether there may be more."""
    if not connection.execute(_MAY_FOLD, {"rows": FOLD_ROWS, "lock": _LOCK}).scalar_one():
        return False
    folded: int = connection.execute(_FOLD, {"limit": _MAX_FOLDED}).scalar_one()
    return folded == _MAX_FOLDED


def forget_users(connection: Connection) -> None:
    """Removes end users' sums of days of which the ledger has nothing any more."""
    connection.execute(_FORGET_USERS)


_LOCK_SUMS = text("select pg_advisory_xact_lock(:lock)")
_OF_USERS = "tenant = :tenant and end_user <> '' and (cast(:user as text) is null or end_user = :user)"
_BLANK_CHANGES = text(f"update usage_changes set end_user = '' where {_OF_USERS}")
_FORGET_DAYS = text(f"delete from user_days where {_OF_USERS}")


def forget(connection: Connection, tenant: str, user: str | None) -> int:
    """Removes the sums of a tenant, or of a user, and the names in changes; returns how many rows."""
    connection.execute(_LOCK_SUMS, {"lock": _LOCK})
    parameters = {"tenant": tenant, "user": user}
    return sum(
        connection.execute(statement, parameters).rowcount for statement in (_BLANK_CHANGES, _FORGET_DAYS)
    )
