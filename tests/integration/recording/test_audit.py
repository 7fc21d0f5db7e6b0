"""Rows that a recorder wrote, damaged by SQL: what an audit of the database finds."""

from datetime import timedelta
from typing import cast
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import InternalError

from server.maintenance.audit_responses import INVARIANTS, AuditLimits
from server.maintenance.audit_responses import check as check_response
from server.protocol.ids import new_uuid
from server.store import audit_snapshot
from server.store.audit_snapshot import PAGE, Scope
from server.store.content import deletion, responses
from server.store.database import Database, clock
from server.store.timeout_connection import REQUEST_TIMEOUTS, TimeoutConnection
from tests.integration.recording.recorded import Bench, finished, tokens
from tests.support.builders import TENANT, kill, register, say, think
from tests.support.invariants import check, find, strange_changes, watch_statuses


def answer(bench: Bench, text: str = "Hello", **about: object) -> UUID:
    """A response that ended, in three commits."""
    run = bench.begin(**about)
    bench.feed(tokens(run, think("why")))
    bench.feed(tokens(run, say(text)))
    bench.feed(finished(run, output=len(text) + 3))
    return run.facts.id


def begin(bench: Bench) -> UUID:
    """A response that runs."""
    run = bench.begin()
    bench.feed(tokens(run, say("Hel")))
    return run.facts.id


def damage(url: str, statement: str, response: UUID) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        changed = connection.execute(statement.encode(), {"id": response, "tenant": TENANT}).rowcount
    assert changed > 0


def test_nothing_is_wrong_with_what_a_recorder_wrote(bench: Bench, database_url: str) -> None:
    watch_statuses(database_url)
    first = answer(bench, 'a "quoted" \0 answer', tenant="other")
    second = answer(bench, "x")
    answer(bench, previous=second)
    answer(bench, store=False)
    running = begin(bench)
    check(database_url)
    with bench.database.begin() as connection:
        for tenant, response in (("other", first), (TENANT, second), (TENANT, running)):
            assert deletion.delete(connection, tenant, response) is not None
    assert find(database_url, scope=Scope(tenant=TENANT, replays=False)) == []
    check(database_url)


LONG_ALIVE = "update replicas set started_at = now() - interval '1 hour' where id = %(id)s"
LOG = "update response_events_hot set {} where response_id = %(id)s"
UNLOG = "delete from response_events_hot where response_id = %(id)s"
STREAM = "update response_streams set {} where response_id = %(id)s"
ROW = "update responses set {} where id = %(id)s"
ITEM = "update items set {} where response_id = %(id)s and side = 1 and idx = 1"
ENDED_WOUNDS = {
    "I2 an event is lost": ("I2", STREAM.format("body = replace(body, '[0,1,', '[1,1,')")),
    "I2 the stream is lost": ("I2", "delete from response_streams where response_id = %(id)s"),
    "I2 the stream is cut": ("I2", STREAM.format("body = left(body, 500)")),
    "I3 another end": ("I3", ROW.format("status = 'cancelled'")),
    "I3 another error": ("I3", ROW.format("error_code = 'server_error'")),
    "I3 an item is lost": ("I3", "delete from items where response_id = %(id)s and idx = 1"),
    "I6 other deltas": ("I6", STREAM.format("""body = replace(body, '"H"', '"J"')""")),
    "I6 other usage": ("I6", ROW.format("output_tokens = 99")),
    "I6 another text": ("I6", ITEM.format("payload = replace(payload::text, 'Hello', 'Jello')::json")),
    "I7 no metering": ("I7", "delete from usage_ledger where response_id = %(id)s"),
    "I9 another's item": ("I9", ITEM.format("id = 'msg_1'")),
    "I9 a stranger's next turn": ("I9", ROW.format("previous_id = gen_random_uuid()")),
    "I11 no end": ("I11", ROW.format("finished_at = null")),
    "I14 an end before its beginning": ("I14", ROW.format("finished_at = created_at - interval '1 hour'")),
    "I16 it is deleted by hand": ("I16", ROW.format("deleted_at = now()")),
    "I16 its row is lost": ("I16", "delete from responses where id = %(id)s"),
}
RUNNING_WOUNDS = {
    "I2 an event is lost": ("I2", UNLOG + " and first_seq = 1"),
    "I2 a row counts wrongly": ("I2", LOG.format("n = 7") + " and first_seq = 4"),
    "I3 an end is written": (
        "I3",
        LOG.format("""body = '{"type":"response.failed","sequence_number":1,"response":{}}'""")
        + " and first_seq = 1",
    ),
    "I11 it is queued after it began": ("I11", ROW.format("status = 'queued'")),
    "I12 an attempt that nobody made": ("I12", LOG.format("attempt = 2")),
    "I12 attempts go back": ("I12", LOG.format("attempt = 0") + " and first_seq > 1"),
    "I14 an event before its beginning": ("I14", LOG.format("at = at - 3600")),
}  # fmt: skip


@pytest.mark.parametrize(("invariant", "statement"), ENDED_WOUNDS.values(), ids=ENDED_WOUNDS)
def test_damage_to_an_ended_response_is_found(
    bench: Bench, database_url: str, invariant: str, statement: str
) -> None:
    answer(bench)
    wounded = answer(bench)
    assert find(database_url) == []
    damage(database_url, statement, wounded)
    found = find(database_url)
    assert invariant in {violation.invariant for violation in found}
    assert {violation.response_id for violation in found} == {wounded}


@pytest.mark.parametrize(("invariant", "statement"), RUNNING_WOUNDS.values(), ids=RUNNING_WOUNDS)
def test_damage_to_a_running_response_is_found(
    bench: Bench, database_url: str, invariant: str, statement: str
) -> None:
    begin(bench)
    wounded = begin(bench)
    assert find(database_url) == []
    damage(database_url, statement, wounded)
    found = find(database_url)
    assert invariant in {violation.invariant for violation in found}
    assert {violation.response_id for violation in found} == {wounded}


def test_a_response_that_a_dead_replica_left_is_found_once_it_should_have_been_taken_over(
    bench: Bench, database_url: str
) -> None:
    left = begin(bench)
    kill(bench.database, bench.replica)
    at_once = AuditLimits(waiting_seconds=-1)
    assert find(database_url, at_once) == [], "while no server lives, nothing is forgotten"
    register(bench.database)
    assert find(database_url) == []
    [found] = find(database_url, at_once)
    assert (found.invariant, found.response_id) == ("I1", left)


NEW_KEY = """
    insert into idempotency_keys (tenant, key, digest, response_id, created_at)
    values (%(tenant)s, gen_random_uuid()::text, '', %(id)s, now() - interval '1 minute')
"""


def test_idempotency_keys_lead_to_one_response_each_which_exists_or_was_deleted(
    bench: Bench, database_url: str
) -> None:
    there, deleted, unstored = answer(bench), answer(bench), answer(bench, store=False)
    with bench.database.begin() as connection:
        deletion.delete(connection, TENANT, deleted)
    for response in (there, deleted, unstored):
        damage(database_url, NEW_KEY, response)
    assert find(database_url) == []
    lost = new_uuid()
    damage(database_url, NEW_KEY, there)
    damage(database_url, NEW_KEY, lost)
    assert {(found.invariant, found.response_id) for found in find(database_url)} == {
        ("I8", there),
        ("I7", lost),
    }
    assert [found.invariant for found in find(database_url, AuditLimits(key_seconds=3600))] == ["I8"]


def test_a_response_that_is_not_stored_may_be_lost_with_its_replica(bench: Bench, database_url: str) -> None:
    damage(database_url, LONG_ALIVE, bench.replica)
    lost = new_uuid()
    damage(database_url, NEW_KEY, lost)
    assert [found.invariant for found in find(database_url)] == ["I7"]
    damage(database_url, "update replicas set state = 'dead' where id = %(id)s", bench.replica)
    assert find(database_url) == []


def test_changes_of_status_are_held_against_the_edges(bench: Bench, database_url: str) -> None:
    watch_statuses(database_url)
    response = answer(bench)
    assert strange_changes(database_url) == []
    damage(database_url, ROW.format("status = 'in_progress'"), response)
    assert strange_changes(database_url) == [f"{response}: its status went from completed to in_progress"]
    damage(database_url, ROW.format("status = 'completed'"), response)
    with pytest.raises(AssertionError, match="went from completed"):
        check(database_url)


def test_nothing_is_wrong_at_any_step_of_a_purge(bench: Bench, database_url: str) -> None:
    parent = answer(bench)
    child = answer(bench, previous=parent)
    with bench.database.begin() as connection:
        deletion.delete(connection, TENANT, parent)
    assert find(database_url) == []
    damage(database_url, ROW.format("expires_at = now()"), child)
    while bench.counts()["responses"] > 0:
        with bench.database.begin() as connection:
            assert deletion.purge_batch(connection, quiet_seconds=0, clock=lambda: 0.0).moved
        assert find(database_url) == []
    assert bench.counts()["items"] == 0


def audited(database: Database, scope: Scope, page: int = PAGE) -> list[UUID]:
    with database.dedicated_connection("audit") as connection:
        with audit_snapshot.snapshot(connection):
            names = [scope.tenant] if scope.tenant else responses.tenants(connection)
        return [
            response.stored.id
            for tenant in names
            for response, _ in audit_snapshot.responses(connection, tenant, scope, 30, page)
        ]


@pytest.mark.parametrize("page", [1, 3, 100])
def test_every_response_in_scope_is_audited_once_newest_first(bench: Bench, page: int) -> None:
    made = [answer(bench, tenant=tenant) for tenant in ("a", "a", "a", "a", "a", "b", "c")]
    ours = made[4::-1]
    assert audited(bench.database, Scope(), page) == [*ours, made[5], made[6]]
    assert audited(bench.database, Scope(tenant="b"), page) == [made[5]]
    assert audited(bench.database, Scope(tenant="nobody"), page) == []
    assert audited(bench.database, Scope(limit=2), page) == [*ours[:2], made[5], made[6]]
    assert audited(bench.database, Scope(limit=3, tenant="a"), page) == ours[:3]


def test_only_responses_made_since_then_are_audited(bench: Bench, database_url: str) -> None:
    old, new = answer(bench), answer(bench)
    damage(database_url, ROW.format("created_at = created_at - interval '3 hours'"), old)
    with bench.database.begin() as connection:
        since = clock(connection) - timedelta(hours=1)
    assert audited(bench.database, Scope(since=since)) == [new]
    assert audited(bench.database, Scope(since=since - timedelta(hours=3))) == [new, old]


def test_an_audit_cannot_change_anything(bench: Bench) -> None:
    def write() -> None:
        with (
            bench.database.dedicated_connection("audit") as connection,
            audit_snapshot.snapshot(connection),
        ):
            connection.exec_driver_sql("delete from responses")

    with pytest.raises(InternalError, match="read-only transaction"):
        write()


def test_a_table_of_any_size_is_looked_through(
    bench: Bench, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cast("dict[str, str]", REQUEST_TIMEOUTS), "statement_timeout", "100ms")
    monkeypatch.setattr(TimeoutConnection, "timeout_seconds", 0.2)
    large = "select 'acme', gen_random_uuid(), 1 from pg_sleep(0.4)"
    monkeypatch.setattr(audit_snapshot, "_SEARCHES", {"items": text(large)})
    assert [one.invariant for one in find(database_url)] == ["I16"]


def test_responses_that_end_during_their_audit_are_seen_as_they_were(bench: Bench) -> None:
    older, newer = bench.begin(), bench.begin()
    bench.feed(tokens(older, say("Hel")), tokens(newer, say("Hel")))
    with bench.database.dedicated_connection("audit") as connection:
        audited = audit_snapshot.responses(connection, TENANT, Scope(), 30)
        first, _ = next(audited)
        bench.feed(finished(older), finished(newer))
        second, moment = next(audited)
        assert next(audited, None) is None
    assert [first.stored.id, second.stored.id] == [newer.facts.id, older.facts.id]
    assert (second.stored.status, second.folded, second.ledger_entry) == ("in_progress", None, None)
    assert check_response(second, moment, AuditLimits()) == []


def test_damage_of_every_kind_is_tried() -> None:
    tried = {name for name, _ in (*ENDED_WOUNDS.values(), *RUNNING_WOUNDS.values())}
    assert tried | {"I1", "I4", "I7", "I8", "I17"} == set(INVARIANTS)
