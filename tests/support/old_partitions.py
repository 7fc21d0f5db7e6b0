"""Databases with partitions beyond retention: ranges in place of the one that the migration makes."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from uuid import UUID

import psycopg

from server.protocol.ids import min_uuid_at
from server.store.schema.partitions import TABLES, TimeRange

DAY = timedelta(days=1)
NOW = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)

_MAKE = """
    create table {name} (like {table} including all);
    alter table {table} attach partition {name}
        for values from (holdfast_uuid_at('{start}')) to (holdfast_uuid_at('{end}'))
"""


def days_ago(first: int, last: int) -> TimeRange:
    """The time from so many days ago until so many days ago; negative ones are to come."""
    return TimeRange(NOW - first * DAY, NOW - last * DAY)


def make_partitions(url: str, ranges: Sequence[TimeRange]) -> None:
    """Replaces the empty first partition of each table by partitions of these ranges."""
    with psycopg.connect(url, autocommit=True) as connection:
        for table in TABLES:
            for (name,) in connection.execute(
                "select relname from pg_class where relispartition and relkind = 'r' and relname like %s",
                [f"{table}_before_%"],
            ).fetchall():
                connection.execute(f"drop table {name}".encode())
            for start, end in ranges:
                name = f"{table}_p{start:%Y%m%d%H}"
                connection.execute(_MAKE.format(name=name, table=table, start=start, end=end).encode())


def id_in(range_: TimeRange, random: Random) -> UUID:
    """A UUIDv7 of a random time in the range."""
    start, end = (int(time.timestamp() * 1000) for time in range_)
    at = random.randrange(start, end)
    return UUID(int=min_uuid_at(at).int | 0x7 << 76 | 0x2 << 62 | random.getrandbits(62))


_ROWS = """
    insert into responses (tenant, id, status, background, stream, model, seed, request, metadata, size,
        created_at, finished_at, expires_at, input_tokens, cached_tokens, output_tokens, reasoning_tokens,
        kind, turn, previous_id)
    select tenant, id, 'completed', false, false, 'm', 1, '{}', '{}', 1000 + place, at, at, at + :days,
        1, 0, 1, 0, 'response', 1 + place % 3,
        case when place % 3 > 0 then lag(id) over (partition by tenant order by place) end
    from made;
    insert into items (tenant, response_id, side, idx, id, type, payload, size, created_at)
    select tenant, id, 0, 0, 'msg_' || replace(id::text, '-', '') || 'i0', 'message', '{}', 100, at
    from made;
    insert into response_streams (tenant, response_id, last_seq, codec, body, finished_at, size)
    select tenant, id, 0, 2, '[]', at, 300 from made;
    insert into usage_ledger (tenant, response_id, model, status, stored, input_tokens, cached_tokens,
        output_tokens, reasoning_tokens, started_at, finished_at, kind, background, attempt)
    select tenant, id, 'm', 'completed', true, 1, 0, 1, 0, at, at, 'response', false, 1 from made;
    insert into storage_changes (tenant, bytes)
    select tenant, sum(1400 + place) from made group by tenant;
"""


def fill(url: str, range_: TimeRange, count: int, *, days: int, tenants: int = 3) -> None:
    """Adds ended responses of a range, in chains of up to three, which expire `days` after they were made."""
    start, end = range_
    with psycopg.connect(url, cursor_factory=psycopg.ClientCursor) as connection:
        connection.execute(
            """
            create temp table made on commit drop as
            select n as place, 'tenant-' || n %% %(tenants)s as tenant, at,
                (lpad(to_hex((extract(epoch from at) * 1000)::bigint), 12, '0') || '7'
                 || substr(md5(n::text), 1, 3) || '8' || substr(md5(random()::text), 1, 15))::uuid as id
            from generate_series(0, %(count)s - 1) as n
            cross join lateral (select %(start)s + n * (%(end)s - %(start)s) / %(count)s as at) as t
            """,
            {"count": count, "start": start, "end": end, "tenants": tenants},
        )
        for statement in _ROWS.replace(":days", f"interval '{days} days'").split(";\n"):
            connection.execute(statement.encode())
