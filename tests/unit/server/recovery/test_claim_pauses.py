"""When the claimer pauses, because what is queued cannot be read."""

from server.recovery.claimer import MAX_PAUSE_SECONDS, ClaimPauses

NO_RIGHT = "permission denied for table items"


def test_a_fault_of_the_environment_pauses_at_once_and_is_named() -> None:
    pauses = ClaimPauses()
    assert pauses.failed("environment", NO_RIGHT, 10.0)
    assert pauses.trouble == "what is queued cannot be read: permission denied for table items"
    assert pauses.is_on(10.9)
    assert not pauses.is_on(11.0)


def test_pauses_grow_to_their_maximum_and_begin_again_after_a_row_that_was_read() -> None:
    pauses, now, lengths = ClaimPauses(), 0.0, []
    for _ in range(8):
        began = now
        pauses.failed("environment", NO_RIGHT, now)
        while pauses.is_on(now):
            now += 0.5
        lengths.append(now - began)
    assert lengths == [1.0, 2.0, 4.0, 8.0, 16.0, MAX_PAUSE_SECONDS, MAX_PAUSE_SECONDS, MAX_PAUSE_SECONDS]
    pauses.succeeded()
    assert pauses.trouble is None
    pauses.failed("environment", NO_RIGHT, now)
    assert not pauses.is_on(now + 1.0)


def test_two_undecodable_rows_in_a_row_pause_nothing_and_three_do() -> None:
    pauses = ClaimPauses()
    assert not pauses.failed("undecodable", "DecodeError", 0.0)
    assert not pauses.failed("passing", "canceling statement", 0.0)
    pauses.succeeded()
    assert not pauses.failed("undecodable", "DecodeError", 0.0)
    assert not pauses.failed("undecodable", "DecodeError", 0.0)
    assert pauses.trouble is None
    assert pauses.failed("undecodable", "DecodeError", 0.0)
    assert pauses.failed("undecodable", "DecodeError", 1.0)
    assert pauses.is_on(2.9)
