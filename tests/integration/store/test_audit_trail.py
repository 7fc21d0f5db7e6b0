import re
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from server.protocol.list_pages import PageRequest
from server.store.administration import audit_trail
from server.store.administration.audit_trail import Entry, EntryFilter
from server.store.database import Connection, Database, clock

SOURCES = sorted((Path(__file__).parents[3] / "server").rglob("*.py"))


def oldest_first(connection: Connection, **conditions: Any) -> list[Entry]:
    entries = audit_trail.entries_page(connection, EntryFilter(**conditions), PageRequest(limit=100))
    assert entries is not None
    return entries


def test_an_entry_is_read_back_with_all_that_was_said_of_it(database: Database) -> None:
    with database.begin() as connection:
        audit_trail.record(
            connection, "user:root", "key.create", "acme", "k1", {"name": "of CI", "rpm": 60}, "req_1"
        )
        audit_trail.record(connection, "key:k1", "response.delete")
    with database.begin() as connection:
        first, second = oldest_first(connection)
    assert (first.actor, first.action, first.tenant, first.target, first.request_id, first.details) == (
        "user:root",
        "key.create",
        "acme",
        "k1",
        "req_1",
        {"name": "of CI", "rpm": 60},
    )
    assert (second.tenant, second.target, second.request_id, second.details) == (None, None, None, {})
    assert first.at <= second.at


def test_an_entry_shares_the_fate_of_its_transaction(database: Database) -> None:
    with suppress(ZeroDivisionError), database.begin() as connection:
        audit_trail.record(connection, "user:root", "key.create", "acme", "k1")
        raise ZeroDivisionError
    with database.begin() as connection:
        assert oldest_first(connection) == []


def test_entries_are_selected_by_tenant_action_and_age_and_the_newest_come(database: Database) -> None:
    with database.begin() as connection:
        for number, (action, tenant) in enumerate(
            [("key.create", "a"), ("key.revoke", "b"), ("key_x", "a"), ("prompt.put", "a")]
        ):
            audit_trail.record(connection, "user:root", action, tenant, str(number))
        connection.exec_driver_sql("update audit_trail set at = at - interval '2 hours' where target = '0'")
    with database.begin() as connection:

        def targets(**conditions: Any) -> list[str | None]:
            return [entry.target for entry in oldest_first(connection, **conditions)]

        assert targets() == ["0", "1", "2", "3"]
        assert targets(tenant="a") == ["0", "2", "3"]
        assert targets(action="key.") == ["0", "1"]
        assert targets(action="key_") == ["2"]
        assert targets(since=clock(connection) - timedelta(hours=1)) == ["1", "2", "3"]
        newest = audit_trail.entries_page(connection, EntryFilter(), PageRequest(None, 1, newest_first=True))
        assert newest is not None
        assert [entry.target for entry in newest] == ["3", "2"]


def test_no_statement_removes_an_entry_and_only_an_erasure_changes_one() -> None:
    changing = re.compile(r"(update|delete|truncate)[\s(]+(from\s+|table\s+)?audit_trail\b", re.IGNORECASE)
    found = {(path.name, how.lower()) for path in SOURCES for how, _ in changing.findall(path.read_text())}
    assert found == {("tenant_rows.py", "update")}


def test_every_recorded_action_is_described() -> None:
    recorded = re.compile(r"\b(?:audit_trail\.)?record\(\s*[^()]*?\"([a-z]+\.[a-z_]+)\"")
    named = {action for path in SOURCES for action in recorded.findall(path.read_text())}
    assert named <= set(audit_trail.ACTIONS)
