"""Stored keys: API keys (insert, validate, change, record use, revoke), and the seal key of all replicas."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Literal, NamedTuple

from sqlalchemy import Connection, bindparam, func, literal, or_, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.sql.expression import ColumnElement, Select
from sqlalchemy.types import ARRAY, Text

from server.caller import DEFAULT_SCOPES, NO_LIMITS, SERVER_SETTINGS, Limits, Scope, TenantSettings
from server.protocol.list_pages import ALL_NEWEST_FIRST, PageRequest
from server.store.administration import tenants
from server.store.arrays import with_numbers
from server.store.driver_statements import execute
from server.store.keyset_page import rows_after
from server.store.tables import api_keys, key_requirement, seal_keys


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyProperties:
    name: str = ""
    priority_floor: int = 0
    """The most urgent priority that requests with this key may have."""
    scopes: frozenset[Scope] = DEFAULT_SCOPES
    models: frozenset[str] | None = None
    tools: frozenset[str] | None = None
    ends_streams: bool = False
    """Whether what runs with the key ends when it expires or is revoked."""
    expires_at: datetime | None = None
    limits: Limits = NO_LIMITS


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredKey:
    """A key's row, with its tenant's settings."""

    tenant: str
    id: str
    digest: bytes
    created_at: datetime
    first_used_at: datetime | None = None
    last_used_at: datetime | None = None
    revoked_at: datetime | None = None
    replaced_by: str | None = None
    first_key: str | None = None
    """The first key of its rotations; None if that is the key itself."""
    properties: KeyProperties = field(default_factory=KeyProperties)
    settings: TenantSettings = SERVER_SETTINGS

    def is_valid(self, now: datetime) -> bool:
        expires_at = self.properties.expires_at
        return self.revoked_at is None and (expires_at is None or expires_at > now)


_ROW_FIELDS = tuple(StoredKey.__dataclass_fields__)[:-2]
_PROPERTY_FIELDS = ("name", "priority_floor", "ends_streams", "expires_at")
_NOT_REVOKED = api_keys.c.revoked_at.is_(None)
_VALID = _NOT_REVOKED & or_(api_keys.c.expires_at.is_(None), api_keys.c.expires_at > func.clock_timestamp())
_KEYS: Select[Any] = select(api_keys, *tenants.SETTINGS_COLUMNS).join_from(
    api_keys, tenants.TABLE, api_keys.c.tenant == tenants.TABLE.c.tenant, isouter=True
)
_NAMES = tuple(column.name for column in _KEYS.selected_columns)
_GET_VALID = with_numbers(_KEYS.where(api_keys.c.id == bindparam("key_id"), _VALID))
KEY_REQUIRED: Final = "select exists (select from key_requirement) or exists (select from api_keys)"
"""`key_required` as a statement for `Database.scalar`. A key that came by SQL or by a restore counts, too."""
_SHARED = "shared"


def _key(columns: Mapping[Any, Any]) -> StoredKey:
    return StoredKey(
        **{name: columns[name] for name in _ROW_FIELDS},
        properties=KeyProperties(
            **{name: columns[name] for name in _PROPERTY_FIELDS},
            scopes=frozenset(columns["scopes"]),
            models=_names(columns["models"]),
            tools=_names(columns["tools"]),
            limits=tenants.limits_of_row(columns),
        ),
        settings=tenants.settings_of_row(columns),
    )


def _names(column: list[str] | None) -> frozenset[str] | None:
    return None if column is None else frozenset(column)


def _values(properties: KeyProperties) -> dict[str, Any]:
    return {
        **{name: getattr(properties, name) for name in _PROPERTY_FIELDS},
        "scopes": sorted(properties.scopes),
        "models": None if properties.models is None else sorted(properties.models),
        "tools": None if properties.tools is None else sorted(properties.tools),
        **tenants.limit_values(properties.limits),
    }


def insert_key(
    connection: Connection,
    tenant: str,
    key_id: str,
    digest: bytes,
    properties: KeyProperties,
    first_key: str | None = None,
) -> bool:
    """`first_key` is the first key of the rotations that this one continues. False if the id is taken."""
    row = insert(api_keys).values(
        tenant=tenant, id=key_id, digest=digest, first_key=first_key, **_values(properties)
    )
    inserted = connection.execute(row.on_conflict_do_nothing().returning(api_keys.c.id))
    require_key(connection)
    return inserted.first() is not None


def any_exist(connection: Connection) -> bool:
    """Whether there is a key, also a revoked or expired one."""
    return bool(connection.execute(select(select(api_keys.c.id).exists())).scalar_one())


def key_required(connection: Connection) -> bool:
    """Whether a key was ever made: revoking or erasing the last one opens nothing."""
    return bool(connection.exec_driver_sql(KEY_REQUIRED).scalar_one())


def require_key(connection: Connection) -> None:
    """Records that requests need a key from now on. Nothing takes it back."""
    connection.execute(insert(key_requirement).values(name=_SHARED).on_conflict_do_nothing())


def any_valid(connection: Connection) -> bool:
    return bool(connection.execute(select(select(api_keys.c.id).where(_VALID).exists())).scalar_one())


def get_valid(connection: Connection, key_id: str) -> StoredKey | None:
    """The valid key with that public id, of any tenant; None if it is unknown, revoked or expired."""
    rows = execute(connection, _GET_VALID, {"key_id": key_id})
    return _key(dict(zip(_NAMES, rows[0], strict=True))) if rows else None


def get(connection: Connection, key_id: str, *, lock: bool = False) -> StoredKey | None:
    """The key with that public id; with `lock` its row is locked until the transaction ends."""
    query = _KEYS.where(api_keys.c.id == key_id)
    row = connection.execute(query.with_for_update(of=api_keys) if lock else query).first()
    return _key(row._mapping) if row else None


_RECORD_USE = text("""
    with due as (
        select id, first_used_at is null as is_first from api_keys
        where tenant = :tenant and id = :id
          and (last_used_at is null or last_used_at < clock_timestamp() - interval '1 minute')
        for update skip locked)
    update api_keys k set last_used_at = clock_timestamp(),
        first_used_at = coalesce(k.first_used_at, clock_timestamp())
    from due d where k.tenant = :tenant and k.id = d.id returning d.is_first
""")


def record_use(connection: Connection, tenant: str, key_id: str) -> bool:
    """Sets `last_used_at` once a minute, unless the row is locked; whether it is the key's first use."""
    return connection.execute(_RECORD_USE, {"tenant": tenant, "id": key_id}).scalar() is True


KeyState = Literal["valid", "expired", "revoked"]
_STATES: dict[KeyState, ColumnElement[bool]] = {
    "valid": _VALID,
    "expired": _NOT_REVOKED & ~_VALID,
    "revoked": ~_NOT_REVOKED,
}


def list_page(
    connection: Connection,
    tenant: str | None,
    state: KeyState | None = None,
    asked: PageRequest = ALL_NEWEST_FIRST,
) -> list[StoredKey]:
    """The keys that come after a key, by age; one more than the limit. Raises InvalidRequest for no key."""
    query = _KEYS
    if tenant is not None:
        query = query.where(api_keys.c.tenant == tenant)
    if state is not None:
        query = query.where(_STATES[state])
    order, kind = (api_keys.c.created_at, api_keys.c.id), "a key"
    rows = rows_after(connection, query, order, asked, among=_KEYS, kind=kind)
    return [_key(row._mapping) for row in rows]


def _update(connection: Connection, key_id: str, *conditions: ColumnElement[bool], **values: object) -> int:
    change = update(api_keys).where(api_keys.c.id == key_id, *conditions)
    return connection.execute(change.values(**values)).rowcount


def set_properties(connection: Connection, key_id: str, properties: KeyProperties) -> None:
    """Replaces what an operator chooses of a key."""
    _update(connection, key_id, **_values(properties))


def replace_key(connection: Connection, key_id: str, new_key: str, expires_at: datetime) -> None:
    """Notes the key that rotation made in its place, and when this one expires."""
    _update(connection, key_id, replaced_by=new_key, expires_at=expires_at)


def revoke(connection: Connection, key_id: str) -> bool:
    """Revokes a key; False if there is no such key that was not revoked."""
    return _update(connection, key_id, _NOT_REVOKED, revoked_at=func.clock_timestamp()) == 1


def end_streams(connection: Connection, key_id: str) -> None:
    """Ends what runs with a revoked key, on every replica."""
    _update(connection, key_id, ends_streams=True)


def ended_keys(connection: Connection, age: timedelta, in_use: Collection[str]) -> list[str]:
    """The keys that end what runs with them, and became invalid within the last `age` or are in use still."""
    keys, now = api_keys.c, func.clock_timestamp()
    used = keys.id == func.any(literal(list(in_use), ARRAY(Text)))
    ended = or_(keys.revoked_at > now - age, keys.expires_at.between(now - age, now), used & ~_VALID)
    return list(connection.scalars(select(keys.id).where(keys.ends_streams, ended)))


def valid_keys_of(connection: Connection, tenant: str) -> int:
    query = select(func.count()).select_from(api_keys).where(api_keys.c.tenant == tenant, _VALID)
    return connection.execute(query).scalar_one()


class TenantAndKeyLimits(NamedTuple):
    """The limits that hold for the requests of a key, and the id under which they are counted."""

    tenant: Limits
    key: Limits
    counted_as: str


def limits_of(connection: Connection, tenant: str, key_id: str | None) -> TenantAndKeyLimits:
    """The limits of a tenant and of one of its keys, revoked ones included."""
    if key_id is not None and (key := get(connection, key_id)) is not None:
        return TenantAndKeyLimits(key.settings.limits, key.properties.limits, key.first_key or key.id)
    return TenantAndKeyLimits(tenants.settings_of(connection, tenant).limits, NO_LIMITS, key_id or "")


def get_seal_key(connection: Connection) -> bytes | None:
    """The stored key; None if there is none."""
    row = connection.execute(select(seal_keys.c.key).where(seal_keys.c.name == _SHARED)).first()
    return row.key if row else None


def insert_seal_key(connection: Connection, key: bytes) -> None:
    """Inserts the key unless there is one already."""
    connection.execute(insert(seal_keys).values(name=_SHARED, key=key).on_conflict_do_nothing())
