"""Messages of runs whose last update is committed alone."""

from uuid import uuid4

from engine.request import Finished, Tokens, TokenUsage
from server.generation.run import Run
from server.recording.recorder_messages import ReleaseRuns, RunUpdate, StartRun
from server.recording.run_registry import RunRegistry
from tests.support.builders import LATER, make_echo, make_run, say


def new(*, background: bool = False) -> Run:
    run = make_run(id=uuid4(), echo=make_echo(background=background))
    run.start()
    return run


def tokens(run: Run, text: str) -> Tokens:
    return Tokens(run.engine_request_id, say(text))


def isolating(hit: Run, other: Run) -> tuple[RunRegistry, RunUpdate]:
    """A registry of two runs, and the update of the first, which is isolated."""
    registry = RunRegistry()
    registry.apply([StartRun(hit, starts=False), StartRun(other, starts=False)], LATER)
    (update,) = registry.apply([tokens(hit, "a")], LATER)
    registry.isolated[hit.facts.id.hex] = update
    return registry, update


def text(update: RunUpdate) -> str:
    return "".join(event.body for event in update.events if event.kind == 1)


def test_messages_of_an_isolated_run_extend_its_update_and_all_others_pass() -> None:
    hit, other = new(), new()
    registry, update = isolating(hit, other)
    update.log_rows = []
    passing = registry.apply([tokens(hit, "b"), tokens(other, "x"), tokens(hit, "c")], LATER)
    assert [passed.run for passed in passing] == [other]
    assert text(update) == "abc"
    assert bytes(update.token_ids) == b"abc"
    assert not update.log_rows
    assert registry.apply([Finished(hit.engine_request_id, "stop", TokenUsage(1, 0, 3))], LATER) == []
    assert update.run.ending is not None
    assert registry.runs == [other]


def test_a_release_of_all_background_runs_releases_an_isolated_one_with_its_update() -> None:
    hit, other = new(background=True), new(background=True)
    registry, update = isolating(hit, other)
    assert [passed.run for passed in registry.apply([ReleaseRuns()], LATER)] == [other]
    assert update.released
    assert not registry


def test_a_later_run_of_the_response_does_not_extend_the_isolated_update_of_an_earlier_one() -> None:
    hit, other = new(), new()
    registry, update = isolating(hit, other)
    again = make_run(id=hit.facts.id)
    (started,) = registry.apply([StartRun(again)], LATER)
    assert started is not update
    assert text(update) == "a"
