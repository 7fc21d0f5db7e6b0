"""API keys: create, update, rotate, revoke. Each change adds its audit entry in the same transaction."""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from server.administration.actor import Actor, described
from server.administration.objects_from_rows import key_object
from server.administration.options_and_form_fields import with_request
from server.caller import KEY_PREFIX, digest_of
from server.errors import Conflict, InvalidRequest, NotFound
from server.protocol.administration.objects import CreatedKey, Key
from server.protocol.administration.requests import MAX_SECONDS, CreateKey, UpdateKey
from server.store.administration import budget_standings, stored_keys
from server.store.administration.stored_keys import KeyProperties, StoredKey
from server.store.cluster import claims
from server.store.database import Connection, clock

MAX_OVERLAP = timedelta(seconds=MAX_SECONDS)
"""The most time for which a rotated key stays valid."""


@dataclass(frozen=True, slots=True)
class NewKey:
    """A new API key; `text` is shown once and never stored."""

    id: str
    text: str
    digest: bytes


def make_key(key_id: str | None = None) -> NewKey:
    """A key with that id, by default a random one."""
    key_id = secrets.token_hex(8) if key_id is None else key_id
    text = f"{KEY_PREFIX}_{key_id}_{secrets.token_hex(32)}"
    return NewKey(key_id, text, digest_of(text))


def create_key(
    connection: Connection, actor: Actor, request: CreateKey, idempotency_key: str | None = None
) -> CreatedKey:
    """A new key. Raises InvalidRequest; Conflict if this idempotency key has made one already."""
    properties = with_request(KeyProperties(), request)
    _check_expiry(connection, properties)
    key_id = None
    if idempotency_key is not None:  # a second key would have the same id
        key_id = hashlib.sha256(f"{actor.name}\0{idempotency_key}".encode()).hexdigest()[:16]
    key = make_key(key_id)
    if not stored_keys.insert_key(connection, request.tenant, key.id, key.digest, properties):
        raise Conflict(
            f"With this Idempotency-Key the key {key.id} was made already. Its text is shown once; rotate it "
            "with an overlap of 0 if that answer was lost."
        )
    actor.record(connection, "key.create", request.tenant, key.id, described(properties, KeyProperties()))
    return _created(connection, key, None)


def update_key(connection: Connection, actor: Actor, key_id: str, request: UpdateKey) -> Key:
    """The key after the change. Raises NotFound for a key that does not exist or is revoked."""
    stored = _locked(connection, key_id)
    properties = with_request(stored.properties, request)
    if properties != stored.properties:
        if properties.expires_at != stored.properties.expires_at:
            _check_expiry(connection, properties)
        stored_keys.set_properties(connection, key_id, properties)
        details = described(properties, stored.properties)
        actor.record(connection, "key.update", stored.tenant, key_id, details)
    return key_objects(connection, [replace(stored, properties=properties)])[0]


def rotate_key(connection: Connection, actor: Actor, key_id: str, overlap: timedelta) -> CreatedKey:
    """A key with the same properties, which lives as long; the old one expires after the overlap at most.
    Raises NotFound; Conflict for a key that was rotated or has expired.
    """
    if not timedelta(0) <= overlap <= MAX_OVERLAP:
        raise InvalidRequest(f"overlap is from 0 to {MAX_OVERLAP.days} days.", param="overlap")
    stored, now = _locked(connection, key_id), clock(connection)
    if stored.replaced_by is not None:
        raise Conflict(f"Key {key_id} was replaced by {stored.replaced_by} already.")
    if not stored.is_valid(now):
        raise Conflict(f"Key {key_id} has expired; create a new one.")
    expires_at = stored.properties.expires_at
    successor = replace(stored.properties, expires_at=expires_at and now + (expires_at - stored.created_at))
    key = make_key()
    first = stored.first_key or stored.id
    stored_keys.insert_key(connection, stored.tenant, key.id, key.digest, successor, first)
    ends_at = now + overlap if expires_at is None else min(expires_at, now + overlap)
    stored_keys.replace_key(connection, key_id, key.id, ends_at)
    details = {"replaced_by": key.id, "expires_at": ends_at.isoformat()}
    actor.record(connection, "key.rotate", stored.tenant, key_id, details)
    return _created(connection, key, key_id)


def revoke_key(connection: Connection, actor: Actor, key_id: str, *, end: bool) -> int:
    """Revokes a key; with `end`, also a revoked one, all that runs with it ends. Returns how many of its
    stored responses had not ended. Raises NotFound.
    """
    stored = stored_keys.get(connection, key_id, lock=True)
    if stored is None or (stored.revoked_at is not None and not end):
        raise _unknown(key_id)
    stored_keys.revoke(connection, key_id)
    actor.record(connection, "key.revoke", stored.tenant, key_id, {"end": end})
    if not end:
        return 0
    stored_keys.end_streams(connection, key_id)
    return claims.request_cancel_of_key(connection, key_id)


def _locked(connection: Connection, key_id: str) -> StoredKey:
    stored = stored_keys.get(connection, key_id, lock=True)
    if stored is None or stored.revoked_at is not None:
        raise _unknown(key_id)
    return stored


def _unknown(key_id: str) -> NotFound:
    return NotFound(f"There is no valid key {key_id[:100]!r}; `holdfast keys list` shows them.")


def _check_expiry(connection: Connection, properties: KeyProperties) -> None:
    if properties.expires_at is not None and properties.expires_at <= clock(connection):
        raise InvalidRequest("expires_at is a time to come.", param="expires_at")


def _created(connection: Connection, key: NewKey, replaces: str | None) -> CreatedKey:
    stored = stored_keys.get(connection, key.id)
    assert stored is not None
    standing = budget_standings.of_keys(connection, [stored]).get(stored.id)
    text = {"value": key.text, "replaces": replaces}
    return key_object(CreatedKey, stored, clock(connection), standing, **text)


def shown_key(connection: Connection, key_id: str) -> Key:
    """The key as `key_objects` has it. Raises NotFound."""
    stored = stored_keys.get(connection, key_id)
    if stored is None:
        raise _unknown(key_id)
    return key_objects(connection, [stored])[0]


def key_objects(connection: Connection, stored: Sequence[StoredKey]) -> list[Key]:
    """The keys as the admin API shows them, with what is left of their budgets."""
    now, standings = clock(connection), budget_standings.of_keys(connection, stored)
    return [key_object(Key, key, now, standings.get(key.id)) for key in stored]
