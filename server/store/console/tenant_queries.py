"""Tenants as the console lists them: settings, keys, usage, what is unfinished and what is stored.

Rows are of tenants that have settings, keys, usage of the last days or something stored. Sums come from the
ledger's days and from the changes of the storage quota, so that no response is counted.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, text

from server.store.console.time_limit import limit_time

USAGE_DAYS = 30
_ROWS = text(f"""
    with known as (
        select tenant from tenants union select tenant from api_keys union select tenant from admin.storage
        union select tenant from admin.usage_daily where day > current_date - {USAGE_DAYS}
    ), listed as (
        select tenant from known
        where (cast(:tenant as text) is null or tenant = :tenant)
            and (cast(:after as text) is null or tenant > :after)
        order by tenant limit :limit
    ), used as (
        select tenant, sum(responses)::bigint as responses, sum(input_tokens)::bigint as input_tokens,
            sum(output_tokens)::bigint as output_tokens, max(day) as last_day
        from admin.usage_daily where day > current_date - {USAGE_DAYS} group by tenant
    ), keys as (
        select tenant, count(*) filter (where usable) as valid_keys, max(last_used_at) as last_used_at
        from admin.keys group by tenant
    ), running as (
        select tenant, count(*) as unfinished from admin.unfinished group by tenant
    )
    select l.tenant, t.tenant is not null as has_settings, coalesce(t.contact, '') as contact,
        t.retention_days, coalesce(u.responses, 0) as responses, coalesce(u.input_tokens, 0) as input_tokens,
        coalesce(u.output_tokens, 0) as output_tokens, u.last_day, coalesce(k.valid_keys, 0) as valid_keys,
        k.last_used_at, coalesce(r.unfinished, 0) as unfinished, coalesce(s.bytes, 0)::bigint as stored_bytes
    from listed l
    left join tenants t on t.tenant = l.tenant
    left join used u on u.tenant = l.tenant
    left join keys k on k.tenant = l.tenant
    left join running r on r.tenant = l.tenant
    left join admin.storage s on s.tenant = l.tenant
    order by l.tenant
""")


def tenant_rows(
    connection: Connection, *, tenant: str | None = None, after: str | None = None, limit: int = 1
) -> Sequence[Row[Any]]:
    """The tenant with that name, or those that come after a name, by name. Raises TimeOver."""
    with limit_time(connection):
        return connection.execute(_ROWS, {"tenant": tenant, "after": after, "limit": limit}).all()
