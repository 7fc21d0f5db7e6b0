"""When and how a step is tried again that could not be committed with the others."""

from uuid import uuid4

import pytest

from server.recording.messages import RunUpdate
from server.recording.side_writer import MAX_PAUSE_SECONDS, MAX_TRIES, Retries, Retry, Way
from server.store.database_errors import CommitFailure
from tests.support.builders import make_echo, make_run


def new(*, background: bool = False) -> RunUpdate:
    return RunUpdate(make_run(id=uuid4(), echo=make_echo(background=background)))


def one(step: RunUpdate) -> tuple[Retries, Retry]:
    retries = Retries()
    retries.add(step, 100.0)
    retry = retries.due(100.0)
    assert retry is not None
    return retries, retry


def fail(retries: Retries, retry: Retry, trouble: CommitFailure, times: int = 1) -> list[float]:
    """The pauses after so many such failures."""
    pauses = []
    for _ in range(times):
        before = retry.next_at
        retries.failed(retry, trouble, before)
        pauses.append(retry.next_at - before)
    return pauses


def test_blocked_tries_are_repeated_with_growing_pauses_and_given_up_after_so_many() -> None:
    retries, retry = one(new())
    pauses = fail(retries, retry, "timed_out", MAX_TRIES - 1)
    assert pauses[:4] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert max(pauses) <= MAX_PAUSE_SECONDS
    assert not retry.given_up
    assert fail(retries, retry, "timed_out") == [0.0]
    assert retry.way == "fail"


def test_an_outage_is_waited_out_however_long_it_is() -> None:
    retries, retry = one(new())
    fail(retries, retry, "unavailable", 1000)
    fail(retries, retry, "schema_mismatch")
    assert not retry.given_up
    assert retry.tries == 0


@pytest.mark.parametrize(
    ("trouble", "background", "way"),
    [
        ("rejected", False, "fail"),
        ("rejected", True, "fail"),
        ("ownership_lost", False, "fail"),
    ],
)
def test_what_is_refused_is_given_up_at_once(trouble: CommitFailure, background: bool, way: Way) -> None:
    retries, retry = one(new(background=background))
    assert fail(retries, retry, trouble) == [0.0]
    assert retry.way == way


def test_what_is_blocked_too_long_goes_on_elsewhere_if_it_may() -> None:
    retries, retry = one(new(background=True))
    fail(retries, retry, "timed_out", MAX_TRIES)
    assert retry.way == "hand back"


def test_what_is_given_up_is_brought_to_an_end_in_either_way_for_as_long_as_it_takes() -> None:
    retries, retry = one(new())
    fail(retries, retry, "rejected")
    ways = []
    for _ in range(50):
        ways.append(retry.way)
        fail(retries, retry, "timed_out")
    assert ways[:4] == ["fail", "hand back", "fail", "hand back"]
    assert fail(retries, retry, "timed_out") == [MAX_PAUSE_SECONDS]


def test_the_step_that_has_waited_longest_is_next() -> None:
    retries = Retries()
    assert retries.due(0.0) is None
    assert retries.wait(0.0) is None
    first, second = new(), new()
    retries.add(first, 1.0)
    retries.add(second, 2.0)
    assert retries.wait(0.5) == 0.5
    retry = retries.due(1.5)
    assert retry is not None
    assert retry.update is first
    retries.failed(retry, "timed_out", 2.5)
    retry = retries.due(2.5)
    assert retry is not None
    assert retry.update is second
    retries.done(retry)
    assert retries.due(2.5) is None
    assert retries.wait(2.5) is not None


def test_a_step_can_be_given_up_from_outside_once() -> None:
    retries, retry = one(new())
    ways = []
    for _ in range(2):
        retries.give_up(retry.response, 101.0)
        ways.append(retry.way)
        retries.failed(retry, "rejected", 101.0)
    assert ways == ["fail", "hand back"]
    retries.give_up(uuid4(), 102.0)
