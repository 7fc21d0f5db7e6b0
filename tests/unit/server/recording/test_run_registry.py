"""Messages of runs whose last update is not committed yet."""

from uuid import UUID, uuid4

from engine.request import Tokens
from server.generation.run import Run
from server.recording.messages import FailRun, RecorderMessage, ReleaseRuns, RunUpdate, StartRun, StopRecorder
from server.recording.run_registry import RunRegistry, SuspendedRuns
from tests.support.builders import LATER, make_echo, make_run, say


def new(*, background: bool = False) -> Run:
    run = make_run(id=uuid4(), echo=make_echo(background=background))
    run.start()
    return run


def tokens(run: Run, text: str) -> Tokens:
    return Tokens(run.engine_request_id, say(text))


def test_messages_to_a_suspended_run_are_retained_in_order_and_all_others_pass() -> None:
    hit, other = new(), new()
    suspended = SuspendedRuns()
    suspended.add(RunUpdate(hit))
    late: list[RecorderMessage] = [
        tokens(hit, "a"),
        FailRun(hit.facts.id, "server_error", "Why."),
        tokens(hit, "b"),
    ]
    passing: list[RecorderMessage] = [tokens(other, "x"), StartRun(new()), StopRecorder()]
    given = [message for pair in zip(late, passing, strict=True) for message in pair]
    assert suspended.divert(given) == passing
    assert hit.facts.id in suspended
    assert suspended.resume(hit.facts.id) == late
    assert not suspended
    assert suspended.divert(given) == given


def test_a_hand_back_of_all_waits_for_the_suspended_ones_of_the_background_only() -> None:
    behind, before, other = new(background=True), new(), new(background=True)
    suspended = SuspendedRuns()
    for run in (behind, before):
        suspended.add(RunUpdate(run))
    assert suspended.divert([ReleaseRuns()]) == [ReleaseRuns()]
    assert suspended.divert([ReleaseRuns(frozenset({before.facts.id, other.facts.id}))]) == [
        ReleaseRuns(frozenset({other.facts.id}))
    ]
    assert suspended.resume(behind.facts.id) == [ReleaseRuns(frozenset({behind.facts.id}))]
    assert suspended.resume(before.facts.id) == [ReleaseRuns(frozenset({before.facts.id}))]


def test_a_hand_back_of_all_passes_by_runs_that_are_paused() -> None:
    hit, other = new(background=True), new(background=True)
    registry = RunRegistry()
    registry.apply([StartRun(hit), StartRun(other)], LATER)
    registry.suspended.add(RunUpdate(hit))
    assert [update.run for update in registry.apply([ReleaseRuns()], LATER)] == [other]
    assert registry.get(hit.facts.id) is hit


def test_a_run_that_is_given_up_retains_nothing_and_is_given_up_once() -> None:
    run = new()
    suspended = SuspendedRuns(max_retained=2)
    suspended.add(RunUpdate(run))
    suspended.divert([tokens(run, "a"), tokens(run, "b")])
    assert suspended.over_limit() == []
    suspended.divert([tokens(run, "c")])
    assert suspended.over_limit() == [run.facts.id]
    assert suspended.give_up(run.facts.id)
    assert not suspended.give_up(run.facts.id)
    assert suspended.divert([tokens(run, "d")]) == []
    assert suspended.over_limit() == []
    assert suspended.resume(run.facts.id) == []


def test_nothing_is_known_of_runs_that_are_not_suspended() -> None:
    suspended = SuspendedRuns()
    assert suspended.resume(UUID(int=1)) == []
    assert not suspended.give_up(UUID(int=1))
