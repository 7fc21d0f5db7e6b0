"""Stored keys: API keys (insert, validate, record use, revoke), and the seal key that all replicas share."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, any_, func, literal, or_, select, update
from sqlalchemy.dialects.postgresql import insert

from server.store.operator_tables import api_keys, seal_keys


@dataclass(frozen=True, slots=True)
class StoredKey:
    tenant: str
    id: str
    name: str
    digest: bytes
    created_at: datetime
    last_used_at: datetime | None
    revoked_at: datetime | None
    priority_floor: int = 0


_COLUMNS = (
    api_keys.c.tenant,
    api_keys.c.id,
    api_keys.c.name,
    api_keys.c.digest,
    api_keys.c.created_at,
    api_keys.c.last_used_at,
    api_keys.c.revoked_at,
    api_keys.c.priority_floor,
)


def insert_key(
    connection: Connection, tenant: str, key_id: str, name: str, digest: bytes, priority_floor: int = 0
) -> None:
    """`priority_floor` is the most urgent priority that requests with this key may have."""
    connection.execute(
        insert(api_keys).values(
            tenant=tenant, id=key_id, name=name, digest=digest, priority_floor=priority_floor
        )
    )


def any_exist(connection: Connection) -> bool:
    """Whether a key was ever made, revoked ones included: revoking the last one opens nothing."""
    return connection.execute(select(api_keys.c.id).limit(1)).first() is not None


def get_valid(connection: Connection, key_id: str) -> StoredKey | None:
    """The valid key with that public id, of any tenant; None if it is unknown, revoked or expired."""
    row = connection.execute(
        select(*_COLUMNS).where(
            api_keys.c.id == key_id,
            api_keys.c.revoked_at.is_(None),
            or_(api_keys.c.expires_at.is_(None), api_keys.c.expires_at > func.clock_timestamp()),
        )
    ).first()
    return StoredKey(*row) if row else None


def has_scope(connection: Connection, tenant: str, key_id: str, scope: str) -> bool:
    """Whether the key has the scope."""
    wanted = (api_keys.c.tenant == tenant, api_keys.c.id == key_id, literal(scope) == any_(api_keys.c.scopes))
    return connection.execute(select(api_keys.c.id).where(*wanted)).first() is not None


def record_use(connection: Connection, tenant: str, key_id: str) -> None:
    """Sets `last_used_at`, at most once a minute. Skips a locked row, so that no request waits."""
    a_minute_ago = func.clock_timestamp() - func.make_interval(0, 0, 0, 0, 0, 1)
    due = (
        select(api_keys.c.id)
        .where(
            api_keys.c.tenant == tenant,
            api_keys.c.id == key_id,
            or_(api_keys.c.last_used_at.is_(None), api_keys.c.last_used_at < a_minute_ago),
        )
        .with_for_update(skip_locked=True)
    )
    connection.execute(
        update(api_keys)
        .where(api_keys.c.tenant == tenant, api_keys.c.id.in_(due))
        .values(last_used_at=func.clock_timestamp())
    )


def list_all(connection: Connection, tenant: str | None) -> list[StoredKey]:
    """Every key, newest first, or one tenant's."""
    query = select(*_COLUMNS).order_by(api_keys.c.created_at.desc())
    if tenant is not None:
        query = query.where(api_keys.c.tenant == tenant)
    return [StoredKey(*row) for row in connection.execute(query)]


def is_revoked(connection: Connection, key_id: str) -> bool:
    """Whether the key exists and was revoked."""
    wanted = select(api_keys.c.id).where(api_keys.c.id == key_id, api_keys.c.revoked_at.is_not(None))
    return connection.execute(wanted).first() is not None


def revoke(connection: Connection, key_id: str) -> bool:
    """Revokes a key; False if there is no such valid key."""
    ended = connection.execute(
        update(api_keys)
        .where(api_keys.c.id == key_id, api_keys.c.revoked_at.is_(None))
        .values(revoked_at=func.clock_timestamp())
    )
    return ended.rowcount == 1


_SHARED = "shared"


def get_seal_key(connection: Connection) -> bytes | None:
    """The stored key; None if there is none."""
    key: bytes | None = connection.execute(
        select(seal_keys.c.key).where(seal_keys.c.name == _SHARED)
    ).scalar()
    return key


def insert_seal_key(connection: Connection, key: bytes) -> None:
    """Inserts the key unless there is one already."""
    connection.execute(insert(seal_keys).values(name=_SHARED, key=key).on_conflict_do_nothing())
