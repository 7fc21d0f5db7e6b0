"""Messages of runs whose last step is not committed yet."""

from uuid import UUID, uuid4

from engine.request import Tokens
from server.generation.run import Run
from server.recording.messages import (
    FailRun,
    Inbound,
    ReleaseRuns,
    RunUpdate,
    StartRun,
    StopRecorder,
)
from server.recording.run_registry import RunRegistry
from server.recording.suspended import Suspended
from tests.support.builders import LATER, make_echo, make_run, say


def new(*, background: bool = False) -> Run:
    run = make_run(id=uuid4(), echo=make_echo(background=background))
    run.accept()
    run.start()
    return run


def tokens(run: Run, text: str) -> Tokens:
    return Tokens(run.engine_request_id, say(text))


def test_messages_to_a_suspended_run_are_retained_in_order_and_all_others_pass() -> None:
    hit, other = new(), new()
    suspended = Suspended()
    suspended.add(RunUpdate(hit))
    late: list[Inbound] = [tokens(hit, "a"), FailRun(hit.facts.id, "server_error", "Why."), tokens(hit, "b")]
    passing: list[Inbound] = [tokens(other, "x"), StartRun(new()), StopRecorder()]
    given = [message for pair in zip(late, passing, strict=True) for message in pair]
    assert suspended.divert(given) == passing
    assert hit.facts.id in suspended
    assert suspended.release(hit.facts.id) == late
    assert not suspended
    assert suspended.divert(given) == given


def test_a_hand_back_of_all_waits_for_the_suspended_ones_of_the_background_only() -> None:
    behind, before, other = new(background=True), new(), new(background=True)
    suspended = Suspended()
    for run in (behind, before):
        suspended.add(RunUpdate(run))
    assert suspended.divert([ReleaseRuns()]) == [ReleaseRuns()]
    assert suspended.divert([ReleaseRuns(frozenset({before.facts.id, other.facts.id}))]) == [
        ReleaseRuns(frozenset({other.facts.id}))
    ]
    assert suspended.release(behind.facts.id) == [ReleaseRuns(frozenset({behind.facts.id}))]
    assert suspended.release(before.facts.id) == [ReleaseRuns(frozenset({before.facts.id}))]


def test_a_hand_back_of_all_passes_by_runs_that_are_paused() -> None:
    hit, other = new(background=True), new(background=True)
    active = RunRegistry()
    active.apply([StartRun(hit), StartRun(other)], LATER)
    active.paused.add(hit.facts.id)
    assert [step.run for step in active.apply([ReleaseRuns()], LATER)] == [other]
    assert active.get(hit.facts.id) is hit


def test_a_run_that_is_given_up_retains_nothing_and_is_given_up_once() -> None:
    run = new()
    suspended = Suspended(most_retained=2)
    suspended.add(RunUpdate(run))
    suspended.divert([tokens(run, "a"), tokens(run, "b")])
    assert suspended.overfull() == []
    suspended.divert([tokens(run, "c")])
    assert suspended.overfull() == [run.facts.id]
    assert suspended.give_up(run.facts.id)
    assert not suspended.give_up(run.facts.id)
    assert suspended.divert([tokens(run, "d")]) == []
    assert suspended.overfull() == []
    assert suspended.release(run.facts.id) == []


def test_nothing_is_known_of_runs_that_are_not_suspended() -> None:
    suspended = Suspended()
    assert suspended.release(UUID(int=1)) == []
    assert not suspended.give_up(UUID(int=1))
