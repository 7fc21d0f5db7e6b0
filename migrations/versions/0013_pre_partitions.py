"""Partitions by time of responses, items, streams and the ledger, their settings for autovacuum, new indexes.

`pre`: may run while the release before it still serves; its statements work on the tables as they are now.
The partition key is the response's UUIDv7, which begins with its creation time in milliseconds.

Nothing is copied. A table becomes the first partition, `TABLE_before_DAY`, of a new table of its name. What
reads all of it (new indexes, the check of its keys' range) runs beside traffic, outside of a transaction; a
repeated upgrade continues where one ended. What needs an exclusive lock is one short transaction a table.
From the check on, the old table takes keys of the next 14 days only: an upgrade that was broken off is to be
repeated, or `holdfast_bound` dropped, before they are over.

The downgrade copies the rows.
"""

from pathlib import Path

import sqlalchemy as sa
from alembic import context, op

from server.store.schema.concurrent_indexes import create_index

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None
lost_by_downgrade = ()

KEYS = {
    "responses": "id",
    "items": "response_id",
    "response_streams": "response_id",
    "usage_ledger": "response_id",
}
"""The tables and the columns by whose ranges they are partitioned."""

NEW_INDEXES = {
    "responses": {
        "ix_responses_id": "(id)",
        "ix_responses_time": "(created_at)",
        "ix_responses_end_user": "(tenant, end_user, created_at desc) where end_user is not null",
        "ix_responses_conversation_id": (
            "(tenant, conversation_id)"
            " where conversation_id is not null and status in ('queued', 'in_progress')"
        ),
    },
    "items": {
        "ix_items_id": "(tenant, id)",
        "ix_items_calls": "(created_at) where type like '%\\_call'",
    },
    "usage_ledger": {"ix_usage_ledger_time": "(finished_at)"},
}
UNIQUE = {
    "responses": (
        "create unique index uq_responses_conversation_id on responses (tenant, conversation_id)"
        " where conversation_id is not null and status in ('queued', 'in_progress')"
    ),
    "items": "alter table items add constraint uq_items_tenant_id unique (tenant, id)",
}
"""What 0012 has and a partitioned table cannot have, since it does not contain the partition key."""

FOLDER = Path(__file__).parent.parent


def upgrade() -> None:
    _run(_sql("functions/partitions.sql"))
    _run(_sql("functions/rights.sql"))
    _run(f"comment on column response_streams.codec is '{_CODEC}'")
    for table, key in KEYS.items():
        if not _is_partitioned(table):
            for name, definition in NEW_INDEXES.get(table, {}).items():
                create_index(name, table, definition)
            _bound(table, key)
            _swap(table, key)
    for table in KEYS:
        _run(f"analyze {table}")  # autovacuum gathers no statistics of partitioned tables, only of partitions


def _bound(table: str, key: str) -> None:
    """The check of the keys' range on a table in use."""
    _run(_ADD_BOUND.replace("TABLE", table).replace("KEY", key))
    _run("set lock_timeout = 0")  # nobody but other schema changes queues behind the next statement
    _run(f"{_REPEATABLE}\nalter table {table} validate constraint holdfast_bound")
    _run("set lock_timeout = '1s'")


def _swap(table: str, key: str) -> None:
    gone = {"responses": "drop index uq_responses_conversation_id", "items": _DROP_UNIQUE_ITEMS}
    steps = _SWAP.replace("TABLE", table).replace("KEY", key).replace("DROP_UNIQUE", gone.get(table, "null"))
    _run(steps.replace("VIEWS", _views(table, "v_events_0013")))


def downgrade() -> None:
    _execute(_UNFOLD)
    _execute(f"comment on column response_streams.codec is '{_CODEC_BEFORE}'")
    for table in reversed(KEYS):  # the view without the join to responses before these are replaced
        names = ", ".join(f"'{name}'" for name in NEW_INDEXES.get(table, {}))
        steps = _COPY_BACK.replace("TABLE", table).replace("NEW_INDEXES", f"array[{names}]::text[]")
        _execute(steps.replace("VIEWS", _views(table, "v_events")))
        if table in UNIQUE:
            _execute(UNIQUE[table])
    _execute("alter table responses set (fillfactor = 80)")
    _execute(_DROP_FUNCTIONS)


def _run(statement: str) -> None:
    """Runs it in a transaction of its own."""
    with op.get_context().autocommit_block():
        _execute(statement)


def _execute(statement: str) -> None:
    """Runs it as it is: `op.execute` would read `%` and `:` in it."""
    if context.is_offline_mode():
        op.get_context().impl.static_output(f"{statement.strip()};\n")
    else:
        op.get_bind().exec_driver_sql(statement, execution_options={"no_parameters": True})


def _is_partitioned(table: str) -> bool:
    if context.is_offline_mode():
        return False
    kind = sa.text("select relkind = 'p' from pg_class where oid = cast(:table as regclass)")
    return bool(op.get_bind().execute(kind, {"table": table}).scalar())


def _views(table: str, file: str) -> str:
    """Views hold tables by their oids, so those of a replaced table are made again."""
    return _sql(f"views/{file}.sql") if table == "response_streams" else "select"


def _sql(path: str) -> str:
    return (FOLDER / path).read_text(encoding="utf-8").strip().removesuffix(";")


_REPEATABLE = "-- squawk-ignore prefer-robust-stmts"
"""To validate a constraint again changes nothing."""

_CODEC_BEFORE = "1: JSON array of hot rows"
_CODEC = f"{_CODEC_BEFORE}; 2: with attempts; 3: and without large parameters, which request has"

_ADD_BOUND = """
do $$
declare
    bound timestamptz := date_trunc('day', clock_timestamp() + interval '15 days', 'UTC');
    earlier text;
begin
    select pg_get_constraintdef(oid) into earlier from pg_constraint
    where conrelid = 'TABLE'::regclass and conname = 'holdfast_bound';
    if earlier is not null then
        if holdfast_time_of(substring(earlier from '[0-9a-f-]{36}')::uuid)
            > clock_timestamp() + interval '7 days' then
            return;
        end if;
        alter table TABLE drop constraint holdfast_bound;
    end if;
    execute format('alter table TABLE add constraint holdfast_bound check (KEY < %L::uuid) not valid',
        holdfast_uuid_at(bound));
end $$
"""

_SWAP = """
do $$
declare
    old regclass := 'TABLE'::regclass;
    bound uuid;
    suffix text;
    one record;
    made text[] := '{}';
    statement text;
begin
    lock table TABLE in access exclusive mode;
    select substring(pg_get_constraintdef(oid) from '[0-9a-f-]{36}')::uuid into strict bound
    from pg_constraint where conrelid = old and conname = 'holdfast_bound';
    suffix := '_before_' || to_char(holdfast_time_of(bound) at time zone 'UTC', 'YYYYMMDD');
    DROP_UNIQUE;
    create table TABLE_partitioned (
        like TABLE including defaults including comments including constraints including storage
        including compression
    ) partition by range (KEY);
    alter table TABLE_partitioned drop constraint holdfast_bound;
    for one in select f.* from holdfast_indexes_of(old) f loop
        made := made || one.statement;
        execute format('alter index %I rename to %I', one.name, one.name || suffix);
    end loop;
    perform holdfast_copy_rights(old, 'TABLE_partitioned'::regclass);
    execute format('alter table TABLE rename to %I', 'TABLE' || suffix);
    alter table TABLE_partitioned rename to TABLE;
    foreach statement in array made loop
        execute statement;
    end loop;
    execute format('alter table TABLE attach partition %I for values from (minvalue) to (%L)',
        'TABLE' || suffix, bound);
    execute format('alter table %I drop constraint holdfast_bound', 'TABLE' || suffix);
    create table TABLE_default partition of TABLE default;
    perform holdfast_set_autovacuum(old), holdfast_set_autovacuum('TABLE_default'::regclass);
    execute $views$VIEWS$views$;
end $$
"""
"""`TABLE_default` takes the rows for which there is no partition, so no insert can fail for lack of one."""

_DROP_UNIQUE_ITEMS = "alter table items drop constraint uq_items_tenant_id"

_COPY_BACK = """
do $$
declare
    made text[];
    statement text;
begin
    lock table TABLE in access exclusive mode;
    create table TABLE_plain (
        like TABLE including defaults including comments including constraints including storage
        including compression
    );
    insert into TABLE_plain select * from TABLE;
    select array_agg(f.statement) into made from holdfast_indexes_of('TABLE'::regclass) f
    where f.name <> all (NEW_INDEXES);
    perform holdfast_copy_rights('TABLE'::regclass, 'TABLE_plain'::regclass);
    alter table TABLE rename to TABLE_partitioned;
    alter table TABLE_plain rename to TABLE;
    execute $views$VIEWS$views$;
    drop table TABLE_partitioned;
    foreach statement in array made loop
        execute statement;
    end loop;
end $$
"""

_UNFOLD = """
update response_streams s set codec = 1, body = (
    select '[' || string_agg(row.body, ',' order by row.place) || ']' from (
        select c.place, '[' || string_agg(p.value::text, ',' order by p.place) || ']' as body
        from json_array_elements(holdfast_with_echo(s.body, r.request)::json)
            with ordinality as c (value, place)
        cross join lateral json_array_elements(c.value) with ordinality as p (value, place)
        where p.place <= 7 group by c.place) as row)
from responses r where s.codec > 1 and r.tenant = s.tenant and r.id = s.response_id
"""
"""Codec 1 for the release before. Stored bytes that it counts change with its next deletions only."""

_DROP_FUNCTIONS = """
do $$
declare one regprocedure;
begin
    for one in select oid from pg_proc
        where pronamespace = current_schema()::regnamespace and proname like 'holdfast\\_%' loop
        execute format('drop function %s', one);
    end loop;
end $$
"""
