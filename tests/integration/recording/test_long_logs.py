"""Event logs that are too long to be folded in the transaction of an end: the retention thread folds them."""

from uuid import UUID

import msgspec

from server.delivery.stored_responses import find_response
from server.generation.run import Run
from server.maintenance import retention
from server.store import log_read, transfer
from server.store.content import deletion
from server.store.erasure.subject import Subject
from server.store.log_append import MAX_FOLDED_AT_END
from tests.integration.recording.recorded import Bench, finished, tokens
from tests.support.builders import TENANT, say
from tests.support.invariants import find


def begin_long(bench: Bench) -> Run:
    """A response that runs and has so many events that its log is not folded when it ends."""
    run = bench.begin()
    for _ in range(2):
        bench.feed(*(tokens(run, say("a")) for _ in range(MAX_FOLDED_AT_END // 2)))
    return run


def end_long(bench: Bench) -> Run:
    """A response that has ended with so many events that its log is not folded."""
    run = begin_long(bench)
    bench.feed(finished(run))
    return run


def streams_exported(bench: Bench) -> list[tuple[UUID, int]]:
    """The responses whose events an export has, and their last events."""
    with transfer.export_snapshot(bench.database) as connection:
        streams = transfer.rows(connection, Subject(TENANT, None), "response.stream")
        found = [(id_, last, log_read.parse_folded(body)) for id_, last, _, body, _, _ in streams]
    assert all(sum(row.n for row in rows) == last + 1 for _, last, rows in found)
    return [(id_, last) for id_, last, _ in found]


def log_tables(bench: Bench) -> dict[str, int]:
    counts = bench.counts()
    return {table: counts[table] for table in ("response_events_hot", "response_streams")}


def test_the_end_of_a_long_response_leaves_its_log_to_the_retention_thread(bench: Bench) -> None:
    long, short = end_long(bench), bench.begin()
    bench.feed(tokens(short, say("a")), finished(short))
    assert log_tables(bench)["response_streams"] == 1
    read, exported = bench.frames(long.facts.id), streams_exported(bench)
    assert read[2:] == bench.hub.frames(long.facts.id)
    assert len(exported) == 2
    retention.fold_logs(bench.database)
    assert log_tables(bench) == {"response_events_hot": 0, "response_streams": 2}
    assert bench.frames(long.facts.id) == read
    assert streams_exported(bench) == exported


def test_a_long_log_is_read_audited_and_shown_before_it_is_folded(bench: Bench, database_url: str) -> None:
    run = end_long(bench)
    with bench.database.begin() as connection:
        ended = log_read.FoldedStream(log_read.read_ended(connection, TENANT, run.facts.id))
        followed = log_read.read_updates(connection, [log_read.Subscription(TENANT, run.facts.id, 2)])
        shown = connection.exec_driver_sql("select count(*) from v_events").scalar_one()
    assert ended.end == shown == run.next_seq
    assert [(update.state, update.events) for update in followed] == [("ended", [])]
    found = find_response(bench.database, TENANT, run.facts.id)
    assert found is not None
    assert msgspec.json.encode(found) == bench.hub.final(run.facts.id)
    assert find(database_url) == []


def test_a_log_with_a_gap_ends_its_response_as_failed_and_stays_as_it_is(bench: Bench) -> None:
    run = begin_long(bench)
    with bench.database.begin() as connection:
        gone = "delete from response_events_hot where n > 10 and first_seq < 10"
        assert connection.exec_driver_sql(gone).rowcount == 1
    bench.recorder.deliver([finished(run)])
    assert b'"failed"' in bench.hub.final(run.facts.id)
    before = log_tables(bench)
    retention.fold_logs(bench.database)
    assert log_tables(bench) == before
    assert before["response_streams"] == 0


def test_a_log_that_cannot_be_folded_keeps_no_other_from_it(bench: Bench) -> None:
    stuck, other = end_long(bench), end_long(bench)
    with bench.database.begin() as connection:
        connection.exec_driver_sql(
            "create function refuse() returns trigger language plpgsql as $$ begin"
            f" if new.response_id = '{stuck.facts.id}' then raise 'no'; end if; return new; end $$;"
            " create trigger refuse before insert on response_streams for each row execute function refuse()"
        )
    retention.fold_logs(bench.database)
    with bench.database.begin() as connection:
        folded = connection.exec_driver_sql("select response_id from response_streams").scalars().all()
    assert folded == [other.facts.id]


def test_a_response_that_is_being_deleted_is_not_folded_and_leaves_nothing(bench: Bench) -> None:
    run = end_long(bench)
    with bench.database.begin() as connection:
        deletion.delete(connection, TENANT, run.facts.id)
        retention.fold_logs(bench.database)
    assert log_tables(bench) == {"response_events_hot": 0, "response_streams": 0}
