"""A tenant's rows, table by table: erases them in batches, and counts them."""

from collections import Counter
from typing import Final

from sqlalchemy import Connection, Table, text

from server.errors import NotFound
from server.store.administration import usage_days
from server.store.erasure.subject import ANONYMOUS, MAKE_ANONYMOUS
from server.store.tables import ALL_TABLES

_BEFORE_KEYS: Final = (
    *("webhook_endpoints", "webhook_deliveries"),
    *("responses", "items", "response_streams", "response_events_hot"),
    *("idempotency_keys", "conversation_items", "conversations", "item_images", "images", "prompts"),
    *("usage_ledger", "usage_changes", "usage_days", "user_days"),
    *("refused_requests", "refused_keys", "spend", "budget_reservations", "rate_buckets"),
    *("storage_changes", "storage_days", "audit_trail"),
)
_KEYS: Final = ("api_keys", "tenants", "reader_tenants")
EMPTIED: Final = (*_BEFORE_KEYS, *_KEYS)
"""Every table with a column `tenant`, in the order in which it is emptied. A response's items and events go
in its transaction; what is left without one goes after it. Entries of the audit trail are reduced, and so are
lines of the ledger where usage is kept. A table that is not here is emptied before the keys."""
COUNTED: Final = 100_000
"""Rows of a table up to which a dry run counts them."""
_REDUCED_ACTOR: Final = """
    case when split_part(actor, ':', 1) not in ('key', 'token') or exists (
        select from api_keys k where actor = 'key:' || k.id and k.tenant <> :tenant) then actor
    else split_part(actor, ':', 1) || ':' || 'erased' end
"""
_REDUCE = text(f"""
    update audit_trail set tenant = null, target = null, request_id = null, details = '{{}}',
        actor = {_REDUCED_ACTOR}
    where id in (select id from audit_trail where tenant = :tenant limit :limit for update skip locked)
""")
_REDUCE_PURGES = text("""
    update audit_trail set details = details #- array['responses', cast(:tenant as text)]
        #- array['conversations', cast(:tenant as text)]
    where action like 'purge.%'
      and (jsonb_exists(details->'responses', :tenant) or jsonb_exists(details->'conversations', :tenant))
""")
_REDUCE_TARGETS = text("""
    update audit_trail set target = null, request_id = null
    where tenant = :tenant and target = any(cast(:names as text[]))
""")
_MAY_CHANGE = text("select has_table_privilege('audit_trail', 'update')")
_FORGET_READINGS = text("update replicas set reading = '{}' where state <> 'alive' and reading <> '{}'")
_READERS = text("""
    select role from reader_tenants where tenant = :tenant and role not in (
        select role from reader_tenants where tenant <> :tenant) order by 1
""")


def tenant_tables() -> list[str]:
    """The tables with a column `tenant`: those of EMPTIED in its order, others before the keys."""
    with_tenant = {str(table.name) for table in ALL_TABLES.tables.values() if "tenant" in table.columns}
    return [*_BEFORE_KEYS, *sorted(with_tenant.difference(EMPTIED)), *_KEYS]


def remove_rows(connection: Connection, table: str, tenant: str, limit: int, *, keep_usage: bool) -> int:
    """Removes rows of a tenant, at most `limit`, and none that is locked, but of keys; returns how many. The
    lock of a key is waited for: who has it adds to what is counted by key, and another pass removes that.
    Lines of the ledger become anonymous where usage is kept.
    """
    parameters = {"tenant": tenant, "limit": limit}
    if table == "audit_trail":
        if not may_change_trail(connection):
            return 0
        return connection.execute(_REDUCE, parameters).rowcount
    if table == "user_days" and keep_usage:
        return usage_days.forget(connection, tenant, None)
    if table in ("usage_changes", "usage_days") and keep_usage:
        return 0
    if table == "usage_ledger" and keep_usage:
        key = _key_query(ALL_TABLES.tables[table], f"and not {ANONYMOUS}")
        return connection.execute(
            text(f"update usage_ledger l set {MAKE_ANONYMOUS} where (tenant, response_id) in ({key})"),
            parameters,
        ).rowcount
    columns = ", ".join(column.name for column in ALL_TABLES.tables[table].primary_key)
    removal = f"delete from {table} where ({columns}) in ({_key_query(ALL_TABLES.tables[table])})"
    return connection.execute(text(removal), parameters).rowcount


def _key_query(table: Table, condition: str = "") -> str:
    columns = ", ".join(f"l.{column.name}" for column in table.primary_key)
    return (
        f"select {columns} from {table.name} l where l.tenant = :tenant {condition}"
        f" limit :limit for update {'' if table.name == 'api_keys' else 'skip locked'}"
    )


def may_change_trail(connection: Connection) -> bool:
    """Whether this database user may reduce entries of the audit trail; a server without DDL may not."""
    return bool(connection.execute(_MAY_CHANGE).scalar_one())


def reduce_purges(connection: Connection, tenant: str) -> int:
    """Removes a tenant's name from the entries of purges, which have counts by tenant."""
    return connection.execute(_REDUCE_PURGES, {"tenant": tenant}).rowcount


def reduce_targets(connection: Connection, tenant: str, names: list[str]) -> int:
    """Removes these names, of responses and conversations, from a tenant's entries in the audit trail."""
    return connection.execute(_REDUCE_TARGETS, {"tenant": tenant, "names": names}).rowcount


def forget_readings(connection: Connection) -> None:
    """Empties what replicas that are gone were reading."""
    connection.execute(_FORGET_READINGS)


def readers_of(connection: Connection, tenant: str) -> list[str]:
    """The database users that read this tenant's rows and no other's."""
    return list(connection.scalars(_READERS, {"tenant": tenant}))


def refuse_unknown(connection: Connection, tenant: str) -> None:
    """Raises NotFound for a tenant of which no table has a row: most likely a mistyped name."""
    exist = " or ".join(f"exists (select from {table} where tenant = :tenant)" for table in tenant_tables())
    if not connection.execute(text(f"select {exist}"), {"tenant": tenant}).scalar_one():
        raise NotFound(
            f"No tenant is named {tenant!r}; `holdfast tenants list` shows which have settings or keys."
        )


def counts(connection: Connection, tenant: str) -> Counter[str]:
    """A tenant's rows by table, each counted up to COUNTED, without tables that have none."""
    rows: Counter[str] = Counter()
    for table in tenant_tables():
        query = f"select count(*) from (select from {table} where tenant = :tenant limit {COUNTED}) as rows"
        rows[table] = connection.execute(text(query), {"tenant": tenant}).scalar_one()
    return +rows
