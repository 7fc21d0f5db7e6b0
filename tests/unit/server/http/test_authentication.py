import hashlib
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from server.administration.key_changes import make_key
from server.caller import DEFAULT_SCOPES, DEFAULT_TENANT, Caller
from server.errors import NotAuthenticated
from server.http import authentication
from server.http.authentication import Authenticator
from server.store.administration import stored_keys
from server.store.administration.stored_keys import StoredKey
from server.store.database import Database
from tests.support.builders import examples


class Keys:
    """Stands for the table of keys and for the database around it."""

    KEY_REQUIRED = stored_keys.KEY_REQUIRED

    def __init__(self) -> None:
        self.stored: dict[str, StoredKey] = {}
        self.touched: list[tuple[str, str]] = []
        self.asked_whether_any = 0

    def autocommit(self, work: Callable[["Keys"], Caller]) -> Caller:
        return work(self)

    def add(self, tenant: str) -> str:
        key = make_key()
        now = datetime.now(UTC)
        self.stored[key.id] = StoredKey(tenant=tenant, id=key.id, digest=key.digest, created_at=now)
        return key.text

    def scalar(self, query: str) -> bool:
        assert query == stored_keys.KEY_REQUIRED
        self.asked_whether_any += 1
        return bool(self.stored)

    def get_valid(self, _connection: object, key_id: str) -> StoredKey | None:
        return self.stored.get(key_id)

    def record_use(self, _connection: object, tenant: str, key_id: str) -> bool:
        self.touched.append((tenant, key_id))
        return False


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> Keys:
    made = Keys()
    monkeypatch.setattr(authentication, "stored_keys", made)
    monkeypatch.setattr("server.store.administration.tenants.get", lambda _connection, _tenant: None)
    return made


def request_of(header: str | None) -> Request:
    headers = [(b"host", b"localhost")]
    if header is not None:
        headers.append((b"authorization", header.encode("latin-1")))
    scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/", "headers": headers}
    return Request(scope)


def identify(keys: Keys, header: str | None, gate: Authenticator | None = None) -> Caller:
    return (gate or Authenticator(cast("Database", keys))).authenticate(request_of(header))


def test_a_new_key_is_found_by_its_id_and_proved_by_its_digest() -> None:
    key = make_key()
    prefix, key_id, secret = key.text.split("_")
    assert (prefix, key_id) == ("hk", key.id)
    assert len(secret) == 64
    assert key.digest == hashlib.sha256(key.text.encode()).digest()


def test_no_two_keys_are_equal() -> None:
    assert len({make_key().text for _ in range(100)}) == 100


def test_everybody_is_the_default_tenant_until_there_is_a_key(keys: Keys) -> None:
    assert identify(keys, None) == Caller(DEFAULT_TENANT, None)
    assert identify(keys, "Bearer anything") == Caller(DEFAULT_TENANT, None)


def test_the_first_key_closes_the_gate_for_good(keys: Keys) -> None:
    gate = Authenticator(cast("Database", keys))
    identify(keys, None, gate)
    text = keys.add("acme")
    with pytest.raises(NotAuthenticated):
        identify(keys, None, gate)
    assert identify(keys, f"Bearer {text}", gate).tenant == "acme"
    keys.stored.clear()
    with pytest.raises(NotAuthenticated):
        identify(keys, None, gate)
    assert keys.asked_whether_any == 2


def test_a_key_is_known_from_its_first_use_until_it_is_found_invalid(keys: Keys) -> None:
    gate = Authenticator(cast("Database", keys))
    header = f"Bearer {keys.add('acme')}"
    identify(keys, header, gate)
    assert gate.known_caller(request_of(header)) == identify(keys, header, gate)
    keys.stored.clear()
    with pytest.raises(NotAuthenticated):
        identify(keys, header, gate)
    assert gate.known_caller(request_of(header)) is None
    with pytest.raises(NotAuthenticated):
        gate.known_caller(request_of(None))


def test_nobody_is_known_without_keys_unless_that_was_just_looked_up(keys: Keys) -> None:
    gate = Authenticator(cast("Database", keys))
    assert gate.known_caller(request_of(None)) is None
    assert gate.expected_tenant(request_of(None)) == DEFAULT_TENANT
    caller = identify(keys, None, gate)
    assert gate.known_caller(request_of(None)) is caller


@pytest.mark.parametrize("form", ["Bearer {}", "bearer {}", "BEARER {}", "Bearer  {} "])
def test_a_valid_key_names_its_tenant_and_is_noted(keys: Keys, form: str) -> None:
    text = keys.add("acme")
    key_id = text.split("_")[1]
    assert identify(keys, form.format(text)) == Caller("acme", key_id, scopes=DEFAULT_SCOPES)
    assert keys.touched == [("acme", key_id)]


def test_the_key_of_one_tenant_is_never_another(keys: Keys) -> None:
    ours, theirs = keys.add("ours"), keys.add("theirs")
    mixed = f"hk_{ours.split('_')[1]}_{theirs.split('_')[2]}"
    assert identify(keys, f"Bearer {ours}").tenant == "ours"
    with pytest.raises(NotAuthenticated):
        identify(keys, f"Bearer {mixed}")


@pytest.mark.parametrize(
    "form",
    [
        "",
        "Bearer",
        "Bearer ",
        "Basic {0}",
        "{0}",
        "Bearer {0}x",
        "Bearer x{0}",
        "Bearer {1}",
        "Bearer hk_{2}",
        "Bearer hk_{2}_",
        "Bearer hk__{3}",
        "Bearer xx_{2}_{3}",
        "Bearer hk_%_{3}",
        "Bearer hk_\xff_{3}",
        "Bearer hk_\0_{3}",
    ],
)
def test_anything_but_a_valid_key_is_refused_and_not_noted(keys: Keys, form: str) -> None:
    text = keys.add("acme")
    _, key_id, secret = text.split("_")
    with pytest.raises(NotAuthenticated):
        identify(keys, form.format(text, text[:-1], key_id, secret))
    assert keys.touched == []


def test_a_stored_digest_of_zeros_lets_nobody_in(keys: Keys) -> None:
    text = keys.add("acme")
    key_id = text.split("_")[1]
    keys.stored[key_id] = replace(keys.stored[key_id], digest=bytes(32))
    with pytest.raises(NotAuthenticated):
        identify(keys, f"Bearer {text}")


@given(st.text(st.characters(max_codepoint=255)))
@examples(150)
def test_any_header_is_refused_and_nothing_else(keys: Keys, header: str) -> None:
    keys.add("acme")
    with pytest.raises(NotAuthenticated):
        identify(keys, header)
