"""Requests that were answered with an error object, counted by hour, tenant, route, status and code."""

from collections.abc import Mapping
from typing import NamedTuple

from sqlalchemy import Connection, text


class RefusedRequest(NamedTuple):
    """The values by which refused requests are counted. All but the tenant are the server's own."""

    tenant: str
    """Empty if it is not known."""
    route: str
    status: int
    error_code: str
    key_id: str = ""
    """The API key by which the tenant is known; empty if it is known otherwise."""


_ADD = text("""
    with present as materialized (
        select id from api_keys where id = any(cast(:key_ids as text[])) order by id for key share
    ), refused as materialized (
        select date_trunc('hour', statement_timestamp(), 'UTC') as hour, n.*
        from unnest(
            cast(:tenants as text[]), cast(:routes as text[]), cast(:statuses as integer[]),
            cast(:codes as text[]), cast(:key_ids as text[]), cast(:counts as bigint[]))
            as n (tenant, route, status, error_code, key_id, requests)
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
    parameters = {
        "tenants": [refusal.tenant for refusal in refusals],
        "routes": [refusal.route for refusal in refusals],
        "statuses": [refusal.status for refusal in refusals],
        "codes": [refusal.error_code for refusal in refusals],
        "key_ids": [refusal.key_id for refusal in refusals],
        "counts": [counts[refusal] for refusal in refusals],
    }
    connection.execute(_ADD, parameters)


def forget(connection: Connection) -> None:
    """Removes counts of a time of which the ledger has nothing any more, but for those of the last day."""
    for statement in _FORGET_ALL:
        connection.execute(statement)
