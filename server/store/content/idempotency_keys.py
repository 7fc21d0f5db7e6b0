"""Idempotency keys: the request digest and the response of each key's first use."""

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from sqlalchemy import Connection, text

KEY_LIFETIME_HOURS: Final = 24


@dataclass(frozen=True, slots=True)
class FirstUse:
    """The first use of a key: its request's digest and its response."""

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
    """Deletes a key whose unstored response was lost with its process; returns whether it did.

    Such a response has neither a row nor a ledger entry, and every replica that could be generating it has
    ended. While a replica is alive that is as old as the key, the response may still run.
    """
    parameters = {"tenant": tenant, "key": key, "response": response}
    return connection.execute(_RELEASE_LOST, parameters).rowcount == 1


def find(connection: Connection, tenant: str, key: str) -> FirstUse | None:
    """The key's use within the last `KEY_LIFETIME_HOURS`; None if there is none."""
    row = connection.execute(_FIND, {"tenant": tenant, "key": key, "hours": KEY_LIFETIME_HOURS}).first()
    return FirstUse(row.digest, row.response_id) if row else None


def claim(connection: Connection, tenant: str, key: str, digest: bytes, response: UUID) -> bool:
    """Assigns the key to a response; False if it was used for another one within its lifetime.

    Waits for a concurrent transaction that claims the same key.
    """
    parameters = {
        "tenant": tenant,
        "key": key,
        "digest": digest,
        "response": response,
        "hours": KEY_LIFETIME_HOURS,
    }
    return connection.execute(_CLAIM, parameters).first() is not None
