import threading
import time
from collections.abc import Sequence

import msgspec
import pytest

from engine.request import Failed, Finished, FinishReason, TokenUsage
from server.delivery.hub import Published
from server.delivery.stored_responses import read_response
from server.generation.hosted_tools_of_response import ToolResult
from server.generation.output_decoding import CompactionSpec, DecodingSpec
from server.generation.run import Run
from server.protocol.responses.events import event_type
from server.protocol.responses.items import Compaction, Message
from server.recording.inbox import CommitPace, Inbox, Pause
from server.recording.recorder import Recorder
from server.recording.recorder_messages import FailRun, RecorderMessage, StartRun, StartTurn, ToolCallFinished
from server.recording.write_updates import read_log
from server.store.content import deletion
from tests.integration.recording.recorded import Bench, finished, recording, tokens
from tests.support.builders import BREAK_PARSER, HALF, TENANT, SpelledParser, accept, kill, say, think
from tests.support.event_order import is_terminal
from tests.support.eventually import eventually


def text_of(bench: Bench, run: Run) -> str:
    return "".join(event.body for event in bench.stored(run.facts.id) if event.kind == 1)


def test_what_readers_are_told_is_committed_before(bench: Bench) -> None:
    run = bench.begin()
    missing: list[bytes] = []

    def compare(batch: list[Published]) -> None:
        for published in batch:
            visible = set(bench.frames(published.response_id))
            missing.extend(frame for frame in published.frames if frame not in visible)

    bench.hub.when_told = compare
    for word in ("Hel", "lo ", "there"):
        bench.feed(tokens(run, say(word)))
    bench.feed(finished(run))
    assert missing == []
    assert bench.hub.frames(run.facts.id) == bench.frames(run.facts.id)[2:]
    assert text_of(bench, run) == "Hello there"


def test_a_run_and_its_first_tokens_in_one_delivery_are_stored(bench: Bench) -> None:
    run = bench.accept()
    bench.feed(StartRun(run), tokens(run, say("first")))
    assert text_of(bench, run) == "first"
    bench.feed(finished(run))
    assert bench.hub.frames(run.facts.id) == bench.frames(run.facts.id)[2:]


@pytest.mark.parametrize("by_model", [True, False])
def test_a_compaction_between_turns_is_stored_as_a_turn_before_the_next_one_begins(
    bench: Bench, by_model: bool
) -> None:
    run = bench.begin()
    bench.feed(tokens(run, say("Hm.")), ToolCallFinished(run.facts.id, 0, ToolResult("Rain.")))
    spec = CompactionSpec(lambda item_id, written: f"{item_id}: {written}", by_model, answers=True)
    bench.feed(StartTurn(run.facts.id, DecodingSpec(SpelledParser(), compaction=spec), 9))
    if by_model:
        bench.feed(tokens(run, say("They met.")), finished(run))
    stored = bench.stored(run.facts.id)
    assert [event_type(event).removeprefix("response.") for event in stored[-3:]] == [
        "output_item.added",
        "compaction.compacting",
        "output_item.done",
    ]
    with bench.database.begin() as connection:
        chunks = read_log(connection, run.facts.tenant, run.facts.id).token_chunks
    assert (len(chunks), chunks[-1][0] == stored[-1].sequence_number) == (1 + by_model, by_model)
    work = run.take_tool_work()
    assert work is None or (work.calls, work.turn) == ((), 1)
    assert run.awaiting_tools
    bench.feed(StartTurn(run.facts.id, DecodingSpec(SpelledParser()), 9), tokens(run, say("Hi.")))
    bench.feed(Finished(run.engine_request_id, "stop", TokenUsage(9, 0, 3)))
    assert [type(item) for item in run.output][-2:] == [Compaction, Message]


def test_one_commit_carries_all_runs_of_a_delivery(bench: Bench) -> None:
    runs = [bench.begin() for _ in range(20)]
    bench.feed(*(tokens(run, say("word")) for run in runs))
    with bench.database.begin() as connection:
        transactions = connection.exec_driver_sql(
            "select count(distinct xmin::text) from response_events_hot where first_seq >= 2"
        ).scalar_one()
    assert transactions == 1
    assert [len(told.batch) for told in bench.hub.told] == [20]
    bench.feed(*(finished(run) for run in runs))
    assert bench.counts()["usage_ledger"] == 20


def test_messages_that_gather_during_a_commit_are_the_next_commit(bench: Bench) -> None:
    first, *others = (bench.begin() for _ in range(5))
    telling, gathered = threading.Event(), threading.Event()

    def wait(_batch: list[Published]) -> None:
        bench.hub.when_told = lambda _batch: None
        telling.set()
        assert gathered.wait(30)

    bench.hub.when_told = wait
    bench.recorder.deliver([tokens(first, say("a"))])
    assert telling.wait(30)
    for run in others:
        bench.recorder.deliver([tokens(run, say("b"))])
        bench.recorder.deliver([tokens(run, say("c"))])
    gathered.set()
    eventually(lambda: len(bench.hub.told) == 2)
    assert [len(told.batch) for told in bench.hub.told] == [1, 4]
    bench.recorder.deliver([finished(run) for run in (first, *others)])


class ShortPauses(CommitPace):
    def pause(self, *_commit: object) -> Pause:
        return Pause(0.05, 0.0)


def test_a_commit_that_follows_another_rests_and_begins_with_a_delivery(database_url: str) -> None:
    with recording(database_url, inbox=Inbox(max_wait=30.0), pace=ShortPauses()) as bench:
        run = bench.begin()
        bench.recorder.deliver([tokens(run, say("a"))])
        eventually(lambda: len(bench.hub.told) == 1)
        bench.recorder.deliver([tokens(run, say("b"))])
        time.sleep(0.3)
        assert len(bench.hub.told) == 1
        bench.recorder.deliver([tokens(run, say("c"))])
        eventually(lambda: len(bench.hub.told) == 2)
        assert text_of(bench, run) == "abc"
        bench.recorder.deliver([finished(run)])


@pytest.mark.parametrize(
    ("reason", "status"), [("stop", "completed"), ("length", "incomplete"), ("cancelled", "cancelled")]
)
def test_the_stored_response_equals_the_one_in_its_last_event(
    bench: Bench, reason: FinishReason, status: str
) -> None:
    run = bench.begin()
    bench.feed(tokens(run, think("why") + say("a \0 b")), finished(run, reason))
    with bench.database.begin() as connection:
        read = read_response(connection, TENANT, run.facts.id)
    assert read is not None
    assert read.status == status
    assert msgspec.json.encode(read) == bench.hub.final(run.facts.id)
    last = bench.stored(run.facts.id)[-1]
    assert msgspec.json.decode(last.body)["response"] == msgspec.to_builtins(run.final)


def test_a_failed_engine_request_ends_its_response_without_telling_the_cause(bench: Bench) -> None:
    run = bench.begin()
    bench.feed(
        tokens(run, say("part")),
        Failed(run.engine_request_id, "out_of_memory", "at 0x7f", TokenUsage(5, 0, 4)),
    )
    final = msgspec.json.decode(bench.hub.final(run.facts.id))
    assert (final["status"], final["error"]["code"]) == ("failed", "server_error")
    assert "0x7f" not in final["error"]["message"]
    assert final["output"][0]["content"][0]["text"] == "part"


def test_the_end_compacts_the_events_and_keeps_their_bytes(bench: Bench) -> None:
    run = bench.begin()
    bench.feed(tokens(run, say('a"\u2028\0')))
    before = bench.frames(run.facts.id)
    bench.feed(finished(run))
    assert bench.counts()["response_events_hot"] == 0
    assert bench.frames(run.facts.id)[: len(before)] == before
    assert bench.frames(run.facts.id)[2:] == bench.hub.frames(run.facts.id)


def test_a_response_that_is_not_stored_leaves_only_its_metering(bench: Bench) -> None:
    run = bench.begin(store=False)
    bench.feed(tokens(run, say("secret")))
    assert set(bench.counts().values()) == {0}
    bench.feed(finished(run, output=6))
    assert {name for name, count in bench.counts().items() if count} == {"usage_ledger"}
    with bench.database.begin() as connection:
        row = connection.exec_driver_sql("select * from usage_ledger").mappings().one()
    assert (row["stored"], row["output_tokens"], row["status"]) == (False, 6, "completed")
    assert "secret" not in str(dict(row))
    assert b"secret" in bench.hub.final(run.facts.id)


def test_stored_and_unstored_runs_of_one_delivery_do_not_mix(bench: Bench) -> None:
    kept, gone = bench.begin(), bench.begin(store=False)
    bench.feed(tokens(kept, say("kept")), tokens(gone, say("gone")))
    bench.feed(finished(gone), finished(kept))
    with bench.database.begin() as connection:
        assert connection.exec_driver_sql("select body from response_streams").scalar_one().count("gone") == 0
    assert text_of(bench, kept) == "kept"


def test_tokens_without_an_event_are_stored_with_the_next_event(bench: Bench) -> None:
    run = bench.begin()
    bench.recorder.deliver([tokens(run, [HALF])])
    bench.recorder.deliver([tokens(run, [HALF])])
    bench.feed(tokens(run, say("x")))
    with bench.database.begin() as connection:
        stored = connection.exec_driver_sql("select token_ids from response_events_hot where first_seq = 2")
        assert memoryview(bytes(stored.scalar_one())).cast("i").tolist() == [HALF, HALF, ord("x")]
    bench.feed(finished(run))


def test_after_a_stop_string_the_engine_is_told_to_end_and_what_it_still_sends_is_dropped(
    bench: Bench,
) -> None:
    run = bench.begin(stops=["END"])
    bench.feed(tokens(run, say("a EN")))
    assert bench.listener.ended_requests == []
    bench.recorder.deliver([tokens(run, say("D and"))])
    eventually(lambda: run.engine_request_id in bench.listener.ended_requests)
    bench.recorder.deliver([tokens(run, say(" more"))])
    bench.feed(finished(run, output=14))
    final = msgspec.json.decode(bench.hub.final(run.facts.id))
    assert (final["status"], final["usage"]["output_tokens"]) == ("completed", 5)
    assert final["output"][0]["content"][0]["text"] == "a "


def test_a_parser_that_raises_fails_only_its_own_run(bench: Bench) -> None:
    broken, fine = bench.begin(), bench.begin()
    bench.feed(tokens(broken, say("good")), tokens(fine, say("a")))
    bench.feed(tokens(broken, [*say("more"), BREAK_PARSER]), tokens(fine, say("b")))
    final = msgspec.json.decode(bench.hub.final(broken.facts.id))
    assert (final["status"], final["error"]["code"]) == ("failed", "server_error")
    assert [event.sequence_number for event in bench.stored(broken.facts.id)] == list(
        range(len(bench.stored(broken.facts.id)))
    )
    assert bench.cancelled == [broken.facts.id]
    bench.feed(finished(fine))
    assert text_of(bench, fine) == "ab"


def test_messages_for_unknown_or_ended_runs_change_nothing(bench: Bench) -> None:
    run, other = bench.begin(), bench.accept()
    bench.feed(tokens(run, say("a")), finished(run))
    before = bench.counts()
    bench.recorder.deliver(
        [tokens(run, say("late")), finished(run), tokens(other, say("x")), finished(other)]
    )
    bench.recorder.deliver([FailRun(other.facts.id, "server_error", "Why.")])
    assert bench.recorder.wait_idle(10)
    bench.recorder.stop()
    assert bench.counts() == before


def test_stop_writes_what_was_delivered_before(bench: Bench) -> None:
    runs = [bench.begin() for _ in range(5)]
    for run in runs:
        bench.recorder.deliver([tokens(run, say("all of it"))])
        bench.recorder.deliver([finished(run)])
    bench.recorder.stop()
    assert [text_of(bench, run) for run in runs] == ["all of it"] * 5
    assert all(is_terminal(bench.stored(run.facts.id)[-1]) for run in runs)


def test_wait_idle_waits_for_the_end_of_every_run(bench: Bench) -> None:
    assert bench.recorder.wait_idle(0)
    run = bench.begin()
    bench.feed(tokens(run, say("a")))
    assert not bench.recorder.wait_idle(0)
    assert bench.recorder.active_runs() == [run]
    bench.recorder.deliver([finished(run)])
    assert bench.recorder.wait_idle(10)
    assert is_terminal(bench.stored(run.facts.id)[-1])
    assert bench.recorder.active_runs() == []


def test_a_run_that_begins_while_the_recorder_becomes_idle_is_waited_for(database_url: str) -> None:
    class IdleAtFirst(Recorder):
        """Has an idle turn before the first delivery."""

        has_begun = False

        def deliver(self, messages: Sequence[RecorderMessage]) -> None:
            if not self.has_begun:
                self.has_begun = True
                super().deliver([])
                eventually(lambda: bench.hub.turns)
                self.wait_idle(0.2)
            super().deliver(messages)

    with recording(database_url, recorder_class=IdleAtFirst) as bench:
        run = bench.accept()
        bench.recorder.start_run(run)
        assert not bench.recorder.wait_idle(0)
        bench.recorder.deliver([finished(run)])
        assert bench.recorder.wait_idle(10)


def test_a_deleted_response_leaves_no_row_after_its_end(bench: Bench) -> None:
    run = bench.begin()
    bench.feed(tokens(run, say("secret")))
    with bench.database.begin() as connection:
        assert deletion.delete(connection, TENANT, run.facts.id) is True
    bench.feed(tokens(run, say(" more")), finished(run, "cancelled"))
    assert {name for name, count in bench.counts().items() if count} == {"usage_ledger"}


def test_a_fenced_recorder_says_so_and_writes_nothing_more(bench: Bench) -> None:
    run = bench.begin()
    bench.feed(tokens(run, say("before")))
    kill(bench.database, bench.replica)
    bench.recorder.deliver([tokens(run, say("after")), finished(run)])
    eventually(lambda: bench.fenced)
    bench.recorder.stop()
    assert bench.fenced == [True]
    assert text_of(bench, run) == "before"
    assert not is_terminal(bench.stored(run.facts.id)[-1])
    assert bench.counts()["usage_ledger"] == 0
    assert all(b"after" not in frame for frame in bench.hub.frames(run.facts.id))


def test_a_run_failed_from_outside_ends_with_that_sentence(bench: Bench) -> None:
    run = bench.begin()
    bench.feed(tokens(run, say("part")))
    bench.recorder.fail_run(run.facts.id, "Sorry.")
    final = msgspec.json.decode(bench.hub.final(run.facts.id))
    assert final["error"] == {"code": "server_error", "message": "Sorry."}
    assert event_type(bench.stored(run.facts.id)[-1]) == "response.failed"


def test_a_tenants_response_is_recorded_as_its_own(bench: Bench) -> None:
    run = accept(bench.database, bench.replica, tenant="other")
    bench.recorder.start_run(run)
    bench.feed(tokens(run, say("a")), finished(run))
    assert bench.stored(run.facts.id) == []
    assert len(bench.stored(run.facts.id, "other")) > 5
