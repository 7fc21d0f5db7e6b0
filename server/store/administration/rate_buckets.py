"""Rate buckets: each holds the units of a minute's limit, and fills evenly within a minute.

A row has only the time at which its bucket is full again, so that nothing happens while no request comes. A
bucket without a row is full. Commits do not wait for the disk: a crash of Postgres may lose the last ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from sqlalchemy import Connection, text

from server.store import arrays
from server.store.database import Database

Kind = Literal["requests", "tokens"]
KINDS: Final[tuple[Kind, ...]] = ("requests", "tokens")


class Bucket(NamedTuple):
    """The tenant or key that a bucket belongs to, and the kind of its contents."""

    tenant: str
    key_id: str
    """The key as which requests are counted; empty for the tenant with all its keys."""
    kind: Kind


class BucketDemand(NamedTuple):
    """Units of a bucket that a request needs."""

    bucket: Bucket
    units: int
    per_minute: int


@dataclass(frozen=True, slots=True)
class TakeResult:
    """Whether all units were taken; for each demand, the seconds until its bucket was full before that."""

    is_taken: bool
    seconds: Sequence[float]


class Unused(NamedTuple):
    """Units that a tenant's key has taken and does not need; of those that it used beyond, less than 0."""

    requests: int = 0
    tokens: int = 0


_TAKE: Final = """
    with demands as (
        select * from unnest($2::text[], $3::text[], $4::bigint[], $5::bigint[]) with ordinality
            as d (key_id, kind, units, per_minute, place)
    ), buckets as (
        select d.*, b.full_at from demands d
        join rate_buckets b on b.tenant = $1 and b.key_id = d.key_id and b.kind = d.kind
        order by b.key_id, b.kind for update of b
    ), changes as (
        select place, key_id, kind, greatest(full_at, statement_timestamp()) as full_at,
            units * interval '1 minute' / per_minute as cost
        from buckets
    ), outcome as (
        select count(*) = cardinality($2::text[])
            and bool_and(full_at + cost <= statement_timestamp() + interval '1 minute') as fits
        from changes
    ), taken as (
        update rate_buckets b set full_at = c.full_at + c.cost from changes c, outcome
        where fits and b.tenant = $1 and b.key_id = c.key_id and b.kind = c.kind)
    select array_prepend(
        cast(fits and set_config('synchronous_commit', 'off', true) = 'off' as integer)::double precision,
        (select array_agg(extract(epoch from full_at - statement_timestamp())::double precision
            order by place) from changes))
    from outcome
"""
"""Takes all units or none: 1 or 0, and for each bucket that has a row the seconds until it was full."""
_CREATE = text(f"""
    insert into rate_buckets (tenant, key_id, kind, full_at)
    select n.*, statement_timestamp() from {arrays.unnest("n", Bucket)}
    on conflict do nothing
""")
_LATEST = "statement_timestamp() + interval '2 minutes'"
"""However much a response used beyond what it took, its bucket holds the first unit a minute later."""
_UNUSED_TYPES = {"tenant": "text", "key_id": "text", "requests": "bigint", "tokens": "bigint"}
_GIVE_BACK = text(f"""
    with unused as (
        select * from {arrays.unnest("u", _UNUSED_TYPES)}
    ), changes as (
        select u.tenant, b.key_id, b.kind,
            sum(interval '1 minute' * greatest(-2.0, least(2.0, b.units::float / b.per_minute))) as change
        from unused u
        left join tenants t on t.tenant = u.tenant
        left join api_keys k on k.id = u.key_id
        cross join lateral (values
            ('', 'requests', u.requests, t.requests_per_minute),
            ('', 'tokens', u.tokens, t.tokens_per_minute),
            (coalesce(k.first_key, k.id), 'requests', u.requests, k.requests_per_minute),
            (coalesce(k.first_key, k.id), 'tokens', u.tokens, k.tokens_per_minute)
        ) as b (key_id, kind, units, per_minute)
        where b.per_minute is not null and b.units <> 0
        group by u.tenant, b.key_id, b.kind order by u.tenant, b.key_id, b.kind)
    insert into rate_buckets as b (tenant, key_id, kind, full_at)
    select tenant, key_id, kind, least({_LATEST}, statement_timestamp() - change) from changes
    on conflict (tenant, key_id, kind) do update set full_at = least({_LATEST},
        greatest(b.full_at, statement_timestamp()) + (excluded.full_at - statement_timestamp()))
    returning set_config('synchronous_commit', 'off', true)
""")
"""`excluded.full_at` carries the change, of which each key's is two minutes at most."""
_DELETE_FULL = text("""
    delete from rate_buckets where (tenant, key_id, kind) in (
        select tenant, key_id, kind from rate_buckets
        where full_at < clock_timestamp() - interval '10 minutes' limit 1000 for update skip locked)
""")


def take(database: Database, demands: Sequence[BucketDemand]) -> TakeResult:
    """Takes the units of all demands, or none. They are of one tenant. Raises DatabaseError."""
    buckets = [demand.bucket for demand in demands]
    values = (
        buckets[0].tenant,
        arrays.literal([bucket.key_id for bucket in buckets]),
        arrays.literal([bucket.kind for bucket in buckets]),
        arrays.literal([demand.units for demand in demands]),
        arrays.literal([demand.per_minute for demand in demands]),
    )
    is_taken, *seconds = database.scalar(_TAKE, values)
    if len(seconds) < len(demands):
        rows = arrays.fields(Bucket, buckets)
        database.autocommit(lambda connection: connection.execute(_CREATE, rows))
        is_taken, *seconds = database.scalar(_TAKE, values)
    return TakeResult(bool(is_taken), seconds)


def give_back(connection: Connection, unused: Mapping[tuple[str, str | None], Unused]) -> None:
    """Gives unused units back to the buckets of these tenants and keys, as far as they have limits now."""
    rows = [
        {"tenant": tenant, "key_id": key_id, **units._asdict()} for (tenant, key_id), units in unused.items()
    ]
    connection.execute(_GIVE_BACK, arrays.columns(rows))


def delete_full(connection: Connection) -> bool:
    """Deletes buckets that have been full for minutes; whether there may be more."""
    return connection.execute(_DELETE_FULL).rowcount == 1000
