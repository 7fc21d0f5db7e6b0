from datetime import datetime, timedelta
from functools import partial

from server.administration.key_changes import make_key
from server.store.administration import stored_keys
from server.store.administration.stored_keys import KeyProperties
from server.store.database import Connection, Database
from server.store.erasure.tenant_rows import remove_rows


def add(connection: Connection, tenant: str, name: str = "") -> str:
    key = make_key()
    stored_keys.insert_key(connection, tenant, key.id, key.digest, KeyProperties(name=name))
    return key.id


def test_a_key_is_found_with_its_tenant_and_digest(database: Database) -> None:
    key = make_key()
    with database.begin() as connection:
        stored_keys.insert_key(connection, "acme", key.id, key.digest, KeyProperties(name="mine"))
        found = stored_keys.get_valid(connection, key.id)
    assert found is not None
    assert (found.tenant, found.id, found.properties.name, found.digest) == (
        "acme",
        key.id,
        "mine",
        key.digest,
    )
    assert (found.last_used_at, found.revoked_at) == (None, None)


def test_the_text_of_a_key_is_stored_nowhere(database: Database) -> None:
    key = make_key()
    with database.begin() as connection:
        stored_keys.insert_key(connection, "acme", key.id, key.digest, KeyProperties(name="mine"))
        row = connection.exec_driver_sql("select api_keys::text from api_keys").scalar_one()
    assert key.text.rsplit("_", 1)[1] not in row


def test_an_unknown_key_is_not_found(database: Database) -> None:
    with database.begin() as connection:
        add(connection, "acme")
        assert stored_keys.get_valid(connection, "unknown") is None
        assert stored_keys.get_valid(connection, "") is None


def test_a_revoked_key_is_not_found_and_is_revoked_once(database: Database) -> None:
    with database.begin() as connection:
        key, other = add(connection, "acme"), add(connection, "acme")
        assert stored_keys.revoke(connection, key)
        assert not stored_keys.revoke(connection, key)
        assert not stored_keys.revoke(connection, "unknown")
        assert stored_keys.get_valid(connection, key) is None
        assert stored_keys.get_valid(connection, other) is not None


def test_an_expired_key_is_not_found(database: Database) -> None:
    with database.begin() as connection:
        key = add(connection, "acme")
        expire = "update api_keys set expires_at = clock_timestamp() + make_interval(secs => %s)"
        connection.exec_driver_sql(expire, (60,))
        assert stored_keys.get_valid(connection, key) is not None
        connection.exec_driver_sql(expire, (-1,))
        assert stored_keys.get_valid(connection, key) is None


def test_a_key_is_required_from_the_first_one_on_even_when_all_are_revoked_or_erased(
    database: Database,
) -> None:
    with database.begin() as connection:
        remove = partial(remove_rows, table="api_keys", tenant="acme", limit=9, keep_usage=False)
        assert remove(connection) == 0
        assert not stored_keys.key_required(connection)
        key = add(connection, "acme")
        assert stored_keys.key_required(connection)
        stored_keys.revoke(connection, key)
        assert stored_keys.key_required(connection)
        assert remove(connection) == 1
        assert (stored_keys.any_exist(connection), stored_keys.key_required(connection)) == (False, True)


def test_keys_are_listed_newest_first_and_by_tenant(database: Database) -> None:
    with database.begin() as connection:
        first, second, third = add(connection, "a", "1"), add(connection, "b", "2"), add(connection, "a", "3")
        stored_keys.revoke(connection, first)
        assert [key.id for key in stored_keys.list_page(connection, None)] == [third, second, first]
        assert [key.id for key in stored_keys.list_page(connection, "a")] == [third, first]
        assert stored_keys.list_page(connection, "c") == []


def test_a_use_is_noted_and_not_again_within_a_minute(database: Database) -> None:
    with database.begin() as connection:
        key = add(connection, "acme")
        stored_keys.record_use(connection, "other", key)
        assert _used(connection, key) is None
        stored_keys.record_use(connection, "acme", key)
        first = _used(connection, key)
        assert first is not None
        stored_keys.record_use(connection, "acme", key)
        assert _used(connection, key) == first
        connection.exec_driver_sql("update api_keys set last_used_at = last_used_at - interval '61 seconds'")
        stored_keys.record_use(connection, "acme", key)
        last = _used(connection, key)
        assert last is not None
        assert last >= first


def test_a_use_of_a_key_whose_row_is_locked_is_not_noted(database: Database) -> None:
    with database.begin() as connection:
        key = add(connection, "acme")
    with database.begin() as other, database.begin() as connection:
        stored_keys.revoke(other, key)
        stored_keys.record_use(connection, "acme", key)
        assert _used(connection, key) is None


def _used(connection: Connection, key: str) -> datetime | None:
    found = stored_keys.get_valid(connection, key)
    assert found is not None
    return found.last_used_at


def test_a_key_in_use_ends_what_runs_with_it_however_long_ago_it_was_revoked(database: Database) -> None:
    with database.begin() as connection:
        key, other, valid = (add(connection, "acme") for _ in range(3))
        for one in (key, other):
            stored_keys.revoke(connection, one)
        connection.exec_driver_sql("update api_keys set revoked_at = revoked_at - interval '1 hour'")
        for one in (key, valid):
            stored_keys.end_streams(connection, one)

        def ended(*in_use: str) -> list[str]:
            return stored_keys.ended_keys(connection, timedelta(minutes=10), in_use)

        assert ended() == ended(other, valid) == []
        assert ended(key, other, valid, "token:ana") == [key]
