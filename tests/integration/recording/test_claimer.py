from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.request import Finished, Tokens, TokenUsage
from server.generation.run_log import texts
from server.model_formats.model_format import Prompt, PromptConversation
from server.protocol.responses.events import event_type
from server.recording.recorder_messages import SERVER_ERROR, ReleaseRuns
from server.recovery.claimer import CHANGED, GIVEN_UP, STOPPED
from server.store.cluster import claims
from server.store.content import deletion
from tests.integration.recording.claiming import CLOSE, OPEN, RealParsers, check_end, ids, taking
from tests.integration.recording.recorded import finished, tokens
from tests.support.builders import (
    BREAK_PARSER,
    HALF,
    TENANT,
    SpelledFormat,
    accept,
    examples,
    say,
    think,
)
from tests.support.eventually import eventually

SPELLED = [*think("wh"), HALF, *think("y"), *say("be"), HALF, *say("cause"), HALF]


def test_a_foreground_response_left_at_any_token_ends_as_failed_with_what_it_had(database_url: str) -> None:
    with taking(database_url) as at:
        for cut in range(len(SPELLED) + 1):
            run = at.leave([[token] for token in SPELLED[:cut]])
            before = at.stream(run)
            at.claimer.claim_all()
            told = check_end(at.bench, run.facts.id, before, "failed")
            assert told["error"] == {"code": SERVER_ERROR, "message": STOPPED}
        assert at.engine.requests == []


def test_a_background_response_left_at_any_token_goes_on_at_the_next(database_url: str) -> None:
    with taking(database_url) as at:
        for cut in range(len(SPELLED) + 1):
            run = at.leave([[token] for token in SPELLED[:cut]], background=True)
            before = at.stream(run)
            at.claimer.claim_all()
            request = at.engine.requests.pop()
            done = list(request.prompt[3:])
            usage = TokenUsage(len(request.prompt), 2, len(SPELLED) - len(done))
            assert done == SPELLED[: len(done)], "what was told is not generated again"
            assert request.output_offset == len(done)
            at.bench.recorder.deliver(
                [
                    Tokens(request.request_id, tuple(SPELLED[len(done) :])),
                    Finished(request.request_id, "stop", usage),
                ]
            )
            told = check_end(at.bench, run.facts.id, before, "completed")
            assert [item["content"][0]["text"] for item in told["output"]] == ["why", "because\ufffd"]
            assert told["usage"]["input_tokens"] == 3
            assert told["usage"]["output_tokens"] == len(SPELLED)


def test_no_transaction_is_open_while_a_prompt_is_written_again(database_url: str) -> None:
    """Postgres ends one that is idle for five seconds, and responses of many turns take longer."""
    idle = (
        "select count(*) from pg_stat_activity where datname = current_database() and state like 'idle in%%'"
    )
    seen: list[object] = []

    class Watching(SpelledFormat):
        def write(self, conversation: PromptConversation) -> Prompt:
            seen.extend(at.bench.database.autocommit(lambda reader: reader.exec_driver_sql(idle).scalars()))
            return super().write(conversation)

    with taking(database_url, Watching()) as at:
        run = at.leave([], background=True)
        seen.clear()
        at.claimer.claim_all()
        assert [request.request_id for request in at.engine.requests] == [run.facts.id.hex]
        assert seen
        assert set(seen) == {0}


@pytest.mark.parametrize("background", [True, False])
def test_a_response_that_was_left_behind_its_stop_string_is_complete(
    database_url: str, background: bool
) -> None:
    with taking(database_url) as at:
        run = at.leave([[*think("END")], [*say("a END and")]], background=background, stop="END")
        before = at.stream(run)
        at.claimer.claim_all()
        assert at.engine.requests == []
        told = check_end(at.bench, run.facts.id, before, "completed")
        assert [item["content"][0]["text"] for item in told["output"]] == ["END", "a "]
        assert told["usage"]["output_tokens"] == len("END" + "a END")


def test_a_waiting_response_is_begun_and_one_cancelled_meanwhile_is_not(database_url: str) -> None:
    with taking(database_url) as at:
        wanted, unwanted = (accept(at.bench.database, at.bench.replica, background=True) for _ in range(2))
        with at.bench.database.begin() as connection:
            claims.request_cancel(connection, TENANT, unwanted.facts.id, "operator")
        at.claimer.claim_all()
        assert [request.request_id for request in at.engine.requests] == [wanted.engine_request_id]
        at.bench.recorder.deliver([Finished(wanted.engine_request_id, "stop", TokenUsage(3, 0, 0))])
        check_end(at.bench, wanted.facts.id, [], "completed")
        told = check_end(at.bench, unwanted.facts.id, [], "cancelled")
        assert told["usage"]["output_tokens"] == 0
        assert told["cancel_reason"] == "operator"
        types = [event_type(event) for event in at.bench.stored(unwanted.facts.id)]
        assert types == ["response.created", "response.queued", "response.incomplete"]


def test_what_waited_for_a_replica_to_start_is_claimed_at_once(database_url: str) -> None:
    with taking(database_url, poll_seconds=3600.0) as at:
        run = accept(at.bench.database, at.bench.replica, background=True)
        at.claimer.start()
        try:
            eventually(lambda: [one.request_id for one in at.engine.requests] == [run.engine_request_id])
        finally:
            at.claimer.stop()
        at.bench.recorder.deliver([Finished(run.engine_request_id, "stop", TokenUsage(3, 0, 0))])
        check_end(at.bench, run.facts.id, [], "completed")


def test_a_response_of_which_too_many_died_is_not_run_by_a_look_for_those_that_wait(
    database_url: str,
) -> None:
    """Only a thorough look ends it; until then it is nobody's."""
    with taking(database_url, max_deaths=3) as at:
        run = accept(at.bench.database, at.bench.replica, background=True)
        with at.bench.database.begin() as connection:
            connection.exec_driver_sql("update responses set deaths = 3")
        at.claimer.claim_all(ends=False)
        assert at.engine.requests == []
        at.claimer.claim_all()
        assert at.engine.requests == []
        check_end(at.bench, run.facts.id, [], "failed")


def test_no_more_is_claimed_than_the_engine_may_run(database_url: str) -> None:
    with taking(database_url, max_running=2) as at:
        for _ in range(3):
            accept(at.bench.database, at.bench.replica, background=True)
        at.claimer.claim_all()
        first = at.engine.requests[:]
        assert len(first) == 2
        at.bench.recorder.deliver([Finished(first[0].request_id, "stop", TokenUsage(3, 0, 0))])
        at.bench.hub.final(UUID(hex=first[0].request_id))
        eventually(lambda: len(at.bench.recorder.capacity) == 1)
        at.claimer.claim_all()
        assert len(at.engine.requests) == 3


@pytest.mark.parametrize("reason", ["overloaded", "share_full", "closed"])
def test_what_the_engine_has_no_room_for_is_handed_back(database_url: str, reason: str) -> None:
    with taking(database_url) as at:
        run = accept(at.bench.database, at.bench.replica, background=True)
        at.engine.refusal = reason
        at.claimer.claim_all()
        assert at.bench.recorder.wait_idle(10)
        at.engine.refusal = None
        at.claimer.claim_all()
        assert [request.request_id for request in at.engine.requests] == [run.engine_request_id]
        at.bench.recorder.deliver([Finished(run.engine_request_id, "stop", TokenUsage(3, 0, 0))])
        check_end(at.bench, run.facts.id, [], "completed")


def test_a_released_response_is_claimed_again_only_when_this_process_is_done_with_it(
    database_url: str,
) -> None:
    with taking(database_url) as at:
        run = accept(at.bench.database, at.bench.replica, background=True)
        at.bench.recorder.capacity.add(run.facts.id, TENANT)  # its release is committed, but not settled
        at.claimer.claim_all()
        assert at.engine.requests == []
        at.bench.recorder.capacity.discard(run.facts.id)
        at.claimer.claim_all()
        assert [request.request_id for request in at.engine.requests] == [run.engine_request_id]
        at.bench.recorder.deliver([Finished(run.engine_request_id, "stop", TokenUsage(3, 0, 0))])
        check_end(at.bench, run.facts.id, [], "completed")


def test_a_background_response_of_which_too_many_died_is_given_up(database_url: str) -> None:
    with taking(database_url, max_deaths=1) as at:
        run = at.leave([], background=True)
        before = at.stream(run)
        at.claimer.claim_all()
        told = check_end(at.bench, run.facts.id, before, "failed")
        assert told["error"]["message"] == GIVEN_UP
        assert at.engine.requests == []


def test_a_response_whose_prompt_is_written_otherwise_now_ends_and_is_not_spliced(database_url: str) -> None:
    with taking(database_url) as at:
        run = at.leave([list(say("half"))], background=True)
        before = at.stream(run)
        with at.bench.database.begin() as connection:
            connection.exec_driver_sql("update responses set prompt_hash = 'other'")
        at.claimer.claim_all()
        told = check_end(at.bench, run.facts.id, before, "failed")
        assert told["error"]["message"] == CHANGED
        assert told["output"][0]["content"][0]["text"] == "half"


THOUGHT = [*ids("Let me think… 😀"), CLOSE, *ids("\n\nIt is é😀!")]


@pytest.mark.parametrize("opened", [False, True])
def test_reasoning_is_read_again_whoever_opened_it(database_url: str, opened: bool) -> None:
    given = THOUGHT if opened else [OPEN, *THOUGHT]
    with taking(database_url, RealParsers(opens_reasoning=opened)) as at:
        for cut in range(len(given) + 1):
            run = at.leave([[token] for token in given[:cut]], background=True)
            before = at.stream(run)
            at.claimer.claim_all()
            request = at.engine.requests.pop()
            rest = tuple(given[request.output_offset :])
            usage = TokenUsage(len(request.prompt), 0, len(rest))
            ended = Finished(request.request_id, "stop", usage)
            at.bench.recorder.deliver([Tokens(request.request_id, rest), ended])
            told = check_end(at.bench, run.facts.id, before, "completed")
            texts = [item["content"][0]["text"] for item in told["output"]]
            assert texts == ["Let me think… 😀", "It is é😀!"]


@given(
    st.lists(
        st.lists(st.integers(0, 1270) | st.sampled_from([OPEN, CLOSE, *ids("😀")]), min_size=1, max_size=4),
        max_size=8,
    ),
    st.booleans(),
)
@example(given_tokens=[[CLOSE, *ids("because")]], opened=True)
@examples(15)
def test_any_tokens_in_any_steps_are_taken_up(
    database_url: str, given_tokens: list[list[int]], opened: bool
) -> None:
    with taking(database_url, RealParsers(opens_reasoning=opened)) as at:
        run = at.leave(given_tokens, background=True)
        before = at.stream(run)
        already = texts(at.bench.stored(run.facts.id))
        at.claimer.claim_all()
        request = at.engine.requests.pop()
        at.bench.recorder.deliver(
            [Finished(request.request_id, "length", TokenUsage(len(request.prompt), 0, 0))]
        )
        check_end(at.bench, run.facts.id, before, "incomplete")
        assert texts(at.bench.stored(run.facts.id))[: len(already) - 1] == already[:-1]


def test_one_whose_tokens_cannot_be_read_again_ends_with_what_it_told(database_url: str) -> None:
    with taking(database_url) as at:
        told = [*think("wh"), *say("be")]
        runs = [at.leave([told], background=background) for background in (False, True, True)]
        before = [at.stream(run) for run in runs]
        with at.bench.database.begin() as connection:
            for run, token in zip(runs, (ord("x"), ord("x"), BREAK_PARSER), strict=True):
                connection.exec_driver_sql(
                    "update response_events_hot set token_ids = %s"
                    " where response_id = %s and token_ids is not null",
                    (token.to_bytes(4, "little"), run.facts.id),
                )
        at.claimer.claim_all()
        for run, seen in zip(runs, before, strict=True):
            output = check_end(at.bench, run.facts.id, seen, "failed")["output"]
            assert [item["content"][0]["text"] for item in output] == ["wh", "be"]


def test_the_responses_of_living_replicas_are_left_alone(database_url: str) -> None:
    with taking(database_url) as at:
        run = at.bench.begin()
        at.bench.feed(tokens(run, say("mine")))
        at.leave([list(say("theirs"))], background=True, dies=False)
        at.claimer.claim_all()
        assert at.engine.requests == []
        at.bench.feed(finished(run))
        assert event_type(at.bench.stored(run.facts.id)[-1]) == "response.completed"


def test_a_deleted_one_leaves_nothing(database_url: str) -> None:
    with taking(database_url) as at:
        run = at.leave([list(say("secret"))], background=True)
        with at.bench.database.begin() as connection:
            assert deletion.delete(connection, TENANT, run.facts.id) is True
        at.claimer.claim_all()
        at.bench.hub.final(run.facts.id)
        assert {name for name, count in at.bench.counts().items() if count} == {"usage_ledger"}


def test_two_replicas_take_each_response_once(database_url: str) -> None:
    with taking(database_url) as first, taking(database_url) as second:
        runs = [first.leave([list(say("a"))], background=True) for _ in range(6)]
        for at in (first, second, first):
            at.claimer.claim_all()
        taken = [request.request_id for request in [*first.engine.requests, *second.engine.requests]]
        assert sorted(taken) == sorted(run.engine_request_id for run in runs)
        for at in (first, second):
            at.bench.recorder.deliver([ReleaseRuns()])
