"""The claimer meets rows that cannot be decoded, and mistakes of ours that one response brings out."""

from typing import Any
from uuid import UUID

import msgspec
import psycopg
import pytest

from engine.request import Finished, TokenUsage
from server.recovery.claimer import CANNOT_GO_ON
from tests.integration.recording.claiming import check_end, taking
from tests.integration.recording.recorded import Bench
from tests.support.builders import accept
from tests.support.eventually import eventually

POISONS = {
    "request": 'update responses set request = \'{"service_tier": "flex"}\' where id = %s',
    "asked": "update responses set asked = '{\"model\": 5}' where id = %s",
    "item": "update items set payload = '[]' where response_id = %s",
    "kind": "update response_events_hot set kind = 99 where response_id = %s",
    "body": "update response_events_hot set kind = 1, body = '[' where response_id = %s",
    "tokens": "update response_events_hot set token_ids = '\\x0102' where response_id = %s",
    "at": "update response_events_hot set at = 'NaN' where response_id = %s",
}

METERED = """
    insert into usage_ledger
      (tenant, response_id, model, status, stored, input_tokens, cached_tokens, output_tokens,
       reasoning_tokens, started_at, finished_at, kind, background, attempt)
    select tenant, id, model, 'completed', true, 3, 0, 7, 0, created_at, now(), kind, background, attempt
    from responses where id = %s
"""


@pytest.mark.parametrize("poison", POISONS)
def test_a_row_that_cannot_be_decoded_ends_its_own_response_and_no_other(
    database_url: str, poison: str
) -> None:
    with taking(database_url) as at:
        bad, good = (accept(at.bench.database, at.bench.replica, background=True) for _ in range(2))
        with at.bench.database.begin() as connection:
            assert connection.exec_driver_sql(POISONS[poison], (bad.facts.id,)).rowcount > 0
        at.claimer.claim_all()
        assert [engine_request.request_id for engine_request in at.engine.requests] == [
            good.engine_request_id
        ]
        with psycopg.connect(database_url, autocommit=True) as connection:
            eventually(lambda: status_of(connection, bad.facts.id) == "failed")
            metered = connection.execute("select response_id, status from usage_ledger").fetchall()
        assert metered == [(bad.facts.id, "failed")]
        eventually(lambda: not at.bench.recorder.produces(bad.facts.id))
        at.bench.recorder.deliver([Finished(good.engine_request_id, "stop", TokenUsage(3, 0, 0))])
        check_end(at.bench, good.facts.id, [], "completed")


def test_a_damaged_row_that_is_in_the_ledger_already_is_ended_all_the_same(database_url: str) -> None:
    with taking(database_url) as at:
        bad = accept(at.bench.database, at.bench.replica, background=True).facts
        with at.bench.database.begin() as connection:
            connection.exec_driver_sql(POISONS["request"], (bad.id,))
            connection.exec_driver_sql(METERED, (bad.id,))
        at.claimer.claim_all()
        with psycopg.connect(database_url, autocommit=True) as observer:
            eventually(lambda: status_of(observer, bad.id) == "failed")
            metered = observer.execute("select response_id, output_tokens from usage_ledger").fetchall()
        assert metered == [(bad.id, 7)]


BROKEN = {
    "a column": ("items rename payload to payload_", "items rename payload_ to payload"),
    "a table": ("items rename to items_", "items_ rename to items"),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_column_or_a_table_that_is_missing_ends_nothing(database_url: str, broken: str) -> None:
    broke, mended = BROKEN[broken]
    with taking(database_url) as at, psycopg.connect(database_url, autocommit=True) as connection:
        runs = [accept(at.bench.database, at.bench.replica, background=True) for _ in range(4)]
        connection.execute(f"alter table {broke}")
        at.claimer.claim_all()
        assert "does not exist" in (at.claimer.trouble() or "")
        assert at.engine.requests == []
        assert len(at.bench.recorder.capacity) == 0
        owned = connection.execute("select count(*) from responses where replica_id is not null").fetchone()
        assert owned == (0,), "the claim is released at once"
        connection.execute(f"alter table {mended}")
        at.claimer.claim_all()
        assert at.claimer.trouble() is None
        assert len(at.engine.requests) == len(runs)
        ends = [Finished(run.engine_request_id, "stop", TokenUsage(3, 0, 0)) for run in runs]
        at.bench.recorder.deliver(ends)
        for run in runs:
            check_end(at.bench, run.facts.id, [], "completed")


@pytest.mark.parametrize("error", [MemoryError(), OSError(24, "Too many open files")])
def test_a_process_without_memory_or_files_ends_nothing(
    database_url: str, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    with taking(database_url) as at:
        run = accept(at.bench.database, at.bench.replica, background=True)

        def refuse(*_arguments: object) -> None:
            raise error

        with monkeypatch.context() as broken:
            broken.setattr("server.recovery.rebuild_run.first_turn", refuse)
            for _ in range(3):
                at.claimer.claim_all()
        assert at.claimer.trouble() is not None
        at.claimer.claim_all()
        assert at.claimer.trouble() is None
        at.bench.recorder.deliver([Finished(run.engine_request_id, "stop", TokenUsage(3, 0, 0))])
        check_end(at.bench, run.facts.id, [], "completed")


def test_after_three_undecodable_rows_in_a_row_claiming_pauses(database_url: str) -> None:
    with taking(database_url) as at, psycopg.connect(database_url, autocommit=True) as connection:
        bad = [accept(at.bench.database, at.bench.replica, background=True).facts.id for _ in range(5)]
        connection.execute("update responses set request = '17'")
        at.claimer.claim_all()
        assert [status_of(connection, response) for response in bad].count("failed") == 3
        assert at.claimer.trouble() is not None
        at.claimer.claim_all()
        assert [status_of(connection, response) for response in bad].count("failed") == 4


def status_of(connection: psycopg.Connection, response: UUID) -> str:
    row = connection.execute("select status from responses where id = %s", (response,)).fetchone()
    assert row is not None
    return str(row[0])


def test_a_mistake_that_one_response_brings_out_ends_it_and_no_other(database_url: str) -> None:
    with taking(database_url) as at:
        bad, good = (accept(at.bench.database, at.bench.replica, background=True) for _ in range(2))
        at.engine.broken_by = bad.engine_request_id
        at.claimer.claim_all()
        assert [engine_request.request_id for engine_request in at.engine.requests] == [
            good.engine_request_id
        ]
        told = final(at.bench, bad.facts.id)
        assert told["error"]["message"] == CANNOT_GO_ON
        at.bench.recorder.deliver([Finished(good.engine_request_id, "stop", TokenUsage(3, 0, 0))])
        check_end(at.bench, good.facts.id, [], "completed")


def final(bench: Bench, response: UUID) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.json.decode(bench.hub.final(response))
    assert told["status"] == "failed"
    return told
