"""How long a follower waits from one read of all logs to the next."""

import pytest

from server.delivery.follower import MAX_POLL_SECONDS, MIN_POLL_SECONDS, pause_after


def test_a_pause_grows_with_what_a_read_takes() -> None:
    pauses = [pause_after(seconds, 0) for seconds in (0.0, 0.005, 0.1, 5.0)]
    assert pauses == pytest.approx([MIN_POLL_SECONDS, MIN_POLL_SECONDS, 1.0, MAX_POLL_SECONDS])


def test_reads_that_find_nothing_become_rarer_but_several_a_second() -> None:
    assert [pause_after(0.0, quiet) for quiet in (0, 1, 2, 9)] == pytest.approx([0.05, 0.1, 0.2, 0.2])
