"""In which order the steps of a failed commit are committed without each other."""

from uuid import uuid4

from server.recording.committer import Isolation
from server.recording.messages import RunUpdate
from tests.support.builders import make_ending, make_run


def adding() -> RunUpdate:
    return RunUpdate(make_run(id=uuid4()))


def ending() -> RunUpdate:
    update = adding()
    update.run.ending = make_ending()
    return update


def play(isolation: Isolation, bad: list[RunUpdate], seconds: float = 0.0) -> list[list[RunUpdate]]:
    """What is tried, if whatever has a bad update in it fails; each try takes so long."""
    tried = []
    now = 0.0
    while (group := isolation.next(now)) is not None:
        tried.append(group)
        now += seconds
        if any(update in bad for update in group):
            isolation.failed()
        else:
            isolation.committed()
    return tried


def test_steps_that_only_add_are_committed_first_and_together_and_ends_one_by_one() -> None:
    steps = [ending(), adding(), ending(), adding()]
    isolation = Isolation(steps, until=1.0)
    bad = steps[2]
    assert play(isolation, [bad]) == [[steps[1], steps[3]], [steps[0]], [bad]]
    assert isolation.suspended == [bad]
    assert isolation.done == [steps[1], steps[3], steps[0]]


def test_a_step_that_only_adds_and_fails_is_found_behind_all_others() -> None:
    steps = [adding(), adding(), adding(), ending()]
    isolation = Isolation(steps, until=1.0)
    bad = steps[1]
    assert play(isolation, [bad]) == [steps[:3], [steps[3]], [steps[0]], [bad], [steps[2]]]
    assert isolation.suspended == [bad]
    assert isolation.done == [steps[3], steps[0], steps[2]]


def test_what_is_not_tried_in_time_is_suspended() -> None:
    steps = [ending() for _ in range(32)]
    isolation = Isolation(steps, until=0.5)
    tried = play(isolation, steps, seconds=0.06)
    assert len(tried) == 9
    assert isolation.done == []
    assert isolation.suspended == steps


def test_one_try_is_made_however_late_it_is() -> None:
    steps = [adding(), ending()]
    isolation = Isolation(steps, until=-1.0)
    assert play(isolation, []) == [[steps[0]]]
    assert isolation.suspended == [steps[1]]


def test_nothing_to_commit_is_nothing_to_try() -> None:
    assert Isolation([], until=1.0).next(0.0) is None
