"""Requests that were answered with an error object, counted by hour, tenant, route, status and code."""

from collections.abc import Mapping
from typing import NamedTuple

from sqlalchemy import Connection, text

from server.store import arrays


class RefusedRequest(NamedTuple):
    """The values by which refused requests are counted. All but the tenant are the server's own."""

    tenant: str
    """Empty if it is not known."""
    route: str
    status: int
    error_code: str
    key_id: str = ""
    """The API key by which the tenant is known; empty if it is known otherwise."""


_ADD = text(f"""
    with present as materialized (
        select id from api_keys where id = any(cast(:key_id as text[])) order by id for key share
    ), refused as materialized (
        select date_trunc('hour', statement_timestamp(), 'UTC') as hour, n.*
        from {arrays.unnest("n", {**arrays.types_of(RefusedRequest), "requests": "bigint"})}
        where key_id = '' or key_id in (select id from present)
    ), by_key as (
        insert into refused_keys (hour, tenant, key_id, status, error_code, requests)
        select hour, tenant, key_id, status, error_code, sum(requests) from refused where key_id <> ''
        group by 1, 2, 3, 4, 5 order by 2, 3, 4, 5
        on conflict (tenant, hour, key_id, status, error_code)
        do update set requests = refused_keys.requests + excluded.requests)
    insert into refused_requests (hour, tenant, route, status, error_code, requests)
    select hour, tenant, route, status, error_code, sum(requests) from refused
    group by 1, 2, 3, 4, 5 order by 2, 3, 4, 5
    on conflict (tenant, hour, route, status, error_code)
    do update set requests = refused_requests.requests + excluded.requests
""")
"""Nothing of a tenant whose keys an erasure has removed: it waits for their locks, and looks once more."""
_FORGET = """
    delete from {table} where hour < least(
        (select min(finished_at) from usage_ledger), statement_timestamp() - interval '1 day')
"""
_FORGET_ALL = tuple(text(_FORGET.format(table=table)) for table in ("refused_requests", "refused_keys"))


def add(connection: Connection, counts: Mapping[RefusedRequest, int]) -> None:
    """Adds these counts to those of the current hour, but those of keys that have been removed."""
    refusals = sorted(counts)
    requests = [counts[refusal] for refusal in refusals]
    connection.execute(_ADD, {**arrays.fields(RefusedRequest, refusals), "requests": requests})


def forget(connection: Connection) -> None:
    """Removes counts of a time of which the ledger has nothing any more, but for those of the last day."""
    for statement in _FORGET_ALL:
        connection.execute(statement)
