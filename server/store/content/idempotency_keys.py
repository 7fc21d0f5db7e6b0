"""Keys of requests that may be sent more than once, and the response that each made."""

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from sqlalchemy import Connection, text

KEY_LIFETIME_HOURS: Final = 24


@dataclass(frozen=True, slots=True)
class FirstUse:
    """What a key was used for."""

    digest: bytes
    response_id: UUID


_FIND = text(
    """
    select digest, response_id from idempotency_keys
    where tenant = :tenant and key = :key and created_at > clock_timestamp() - make_interval(hours => :hours)
    """
)
_CLAIM = text(
    """
    insert into idempotency_keys as k (tenant, key, digest, response_id)
    values (:tenant, :key, :digest, :response)
    on conflict (tenant, key) do update
        set digest = excluded.digest, response_id = excluded.response_id, created_at = clock_timestamp()
        where k.created_at <= clock_timestamp() - make_interval(hours => :hours)
            or k.response_id = excluded.response_id
    returning response_id
    """
)


_RELEASE_LOST = text(
    """
    delete from idempotency_keys k
    where k.tenant = :tenant and k.key = :key and k.response_id = :response
      and not exists (select 1 from responses r where r.tenant = k.tenant and r.id = k.response_id)
      and not exists (
        select 1 from usage_ledger l where l.tenant = k.tenant and l.response_id = k.response_id)
      and not exists (select 1 from replicas p where p.state = 'alive' and p.started_at <= k.created_at)
    """
)


def release_lost(connection: Connection, tenant: str, key: str, response: UUID) -> bool:
    """Frees a key whose response was not stored and was lost with its process; whether that was so.

    Such a response has left nothing, not even a line in the ledger, and every replica that could be
    generating it has ended. While a replica lives that is as old as the key, this cannot be known.
    """
    parameters = {"tenant": tenant, "key": key, "response": response}
    return connection.execute(_RELEASE_LOST, parameters).rowcount == 1


def find(connection: Connection, tenant: str, key: str) -> FirstUse | None:
    """What the key was used for within the last day."""
    row = connection.execute(_FIND, {"tenant": tenant, "key": key, "hours": KEY_LIFETIME_HOURS}).first()
    return FirstUse(row.digest, row.response_id) if row else None


def claim(connection: Connection, tenant: str, key: str, digest: bytes, response: UUID) -> bool:
    """Ties the key to a response, unless it was used for another one within the last day.

    Waits for another transaction that is about to do so.
    """
    parameters = {
        "tenant": tenant,
        "key": key,
        "digest": digest,
        "response": response,
        "hours": KEY_LIFETIME_HOURS,
    }
    return connection.execute(_CLAIM, parameters).first() is not None
