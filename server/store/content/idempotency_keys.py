"""Idempotency keys: find, claim, free and expire; each has the digest and response of its first use.

Among them are approvals of calls that are spent (`spend`): each names the response that makes the call.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from uuid import UUID

from sqlalchemy import Connection, text

from server.store import arrays
from server.store.content.deletion import MAX_BATCH_ROWS

KEY_LIFETIME: Final = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class FirstUse:
    """The first use of a key: its request's digest and its response."""

    digest: bytes
    response_id: UUID


@dataclass(frozen=True, slots=True)
class KeyUse:
    """A key of a tenant, and the response that it was to be claimed for."""

    tenant: str
    key: str
    response_id: UUID


_FIND = text("""
    select digest, response_id from idempotency_keys
    where tenant = :tenant and key = :key and created_at > clock_timestamp() - cast(:lifetime as interval)
""")
_CLAIM = text("""
    insert into idempotency_keys as k (tenant, key, digest, response_id, replica_id)
    values (:tenant, :key, :digest, :response, :replica)
    on conflict (tenant, key) do update
        set digest = excluded.digest, response_id = excluded.response_id, replica_id = excluded.replica_id,
            created_at = clock_timestamp()
        where k.created_at <= clock_timestamp() - cast(:lifetime as interval)
            or k.response_id = excluded.response_id
    returning response_id
""")
_RELEASE_LOST = text("""
    delete from idempotency_keys k
    where k.tenant = :tenant and k.key = :key and k.response_id = :response
      and not exists (select 1 from responses r where r.tenant = k.tenant and r.id = k.response_id)
      and not exists (
        select 1 from usage_ledger l where l.tenant = k.tenant and l.response_id = k.response_id)
      and not exists (
        select 1 from replicas p
        where p.state = 'alive' and coalesce(p.id = k.replica_id, p.started_at <= k.created_at))
""")


def release_lost(connection: Connection, tenant: str, key: str, response: UUID) -> bool:
    """Deletes a key whose unstored response was lost with its process; returns whether it did.

    Such a response has neither a row nor a ledger entry, and the replica that claimed its key is not alive
    any more. Of a key that names none, every replica that is as old as the key may be generating it.
    """
    parameters = {"tenant": tenant, "key": key, "response": response}
    return connection.execute(_RELEASE_LOST, parameters).rowcount == 1


_FREE = text(f"""
    delete from idempotency_keys where (tenant, key, response_id) in (
        select * from {arrays.unnest("k", KeyUse)})
    returning response_id
""")


def free(connection: Connection, uses: Sequence[KeyUse]) -> set[UUID]:
    """Deletes keys whose responses never began, where they are claimed for them; returns these responses."""
    return set(connection.scalars(_FREE, arrays.fields(KeyUse, uses)))


def find(connection: Connection, tenant: str, key: str) -> FirstUse | None:
    """The key's use within the last `KEY_LIFETIME`; None if there is none."""
    row = connection.execute(_FIND, {"tenant": tenant, "key": key, "lifetime": KEY_LIFETIME}).first()
    return FirstUse(row.digest, row.response_id) if row else None


def claim(
    connection: Connection, tenant: str, key: str, digest: bytes, response: UUID, replica: UUID | None = None
) -> bool:
    """Assigns the key to a response; False if it was used for another one within its lifetime. `replica`
    generates a response without a row: with its lease the key ends, too. Waits for a concurrent transaction
    that claims the same key.
    """
    use = {"tenant": tenant, "key": key, "digest": digest, "response": response, "replica": replica}
    return connection.execute(_CLAIM, {**use, "lifetime": KEY_LIFETIME}).first() is not None


_OLD = """
    created_at < statement_timestamp() - cast(:lifetime as interval)
    and not (left(key, 1) = chr(10) and exists (
        select from responses r where r.tenant = idempotency_keys.tenant
          and (r.id = response_id or r.id = cast(substring(key from '[0-9a-f]{32}') as uuid))))
"""
"""Past its lifetime, and no spent approval that may be sent again."""
_COUNT_OLD = text(f"select count(*) from idempotency_keys where {_OLD}")
_DELETE_OLD = text(f"""
    delete from idempotency_keys where (tenant, key) in (
        select tenant, key from idempotency_keys where {_OLD}
        order by created_at limit :limit for update skip locked)
""")


def count_old_keys(connection: Connection) -> int:
    return int(connection.execute(_COUNT_OLD, {"lifetime": KEY_LIFETIME}).scalar_one())


def delete_old_keys(connection: Connection) -> int:
    """Deletes expired idempotency keys, at most `MAX_BATCH_ROWS`; returns how many."""
    return connection.execute(_DELETE_OLD, {"lifetime": KEY_LIFETIME, "limit": MAX_BATCH_ROWS}).rowcount


MARK = "\n"
"""Begins the key of a spent approval, before the approval request's id; no header can have it. The key stays
as long as the response that asked or the one that makes the call, and for `KEY_LIFETIME` at least."""
_SPEND = text("""
    insert into idempotency_keys as k (tenant, key, digest, response_id)
    values (:tenant, :key, '', :response)
    on conflict (tenant, key) do update set response_id = k.response_id
    returning response_id
""")
_PASS_ON = text("""
    update idempotency_keys set response_id = :response where tenant = :tenant and key = :key
""")
_OWNER = text("select response_id from idempotency_keys where tenant = :tenant and key = :key")


def spend(connection: Connection, tenant: str, approval: str, response: UUID) -> UUID:
    """Spends an approval for a response, unless it is spent; returns the response that has it.

    Waits for a concurrent transaction that spends the same one.
    """
    use = {"tenant": tenant, "key": MARK + approval, "response": response}
    owner: UUID = connection.execute(_SPEND, use).scalar_one()
    return owner


def pass_on(connection: Connection, tenant: str, approval: str, response: UUID) -> None:
    """Gives a spent approval to another response."""
    connection.execute(_PASS_ON, {"tenant": tenant, "key": MARK + approval, "response": response})


def owner(connection: Connection, tenant: str, approval: str) -> UUID | None:
    """The response that an approval is spent for; None if it is not spent."""
    return connection.execute(_OWNER, {"tenant": tenant, "key": MARK + approval}).scalar()
