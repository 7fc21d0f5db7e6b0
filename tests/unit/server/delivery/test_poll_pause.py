"""How long a follower waits from one read of all logs to the next."""

import pytest

from server.delivery.follower import (
    FLEET_POLL_SECONDS,
    MAX_POLL_SECONDS,
    MIN_POLL_SECONDS,
    Hinted,
    pause_after,
)


@pytest.mark.parametrize(
    ("hinted", "pauses"),
    [
        ("everything", [MIN_POLL_SECONDS, 1.0, MAX_POLL_SECONDS]),
        ("nothing", [MIN_POLL_SECONDS, MIN_POLL_SECONDS, 1.0]),
        ("after a silence", [FLEET_POLL_SECONDS, FLEET_POLL_SECONDS, 1.0]),
    ],
)
def test_a_pause_grows_with_what_a_read_takes(hinted: Hinted, pauses: list[float]) -> None:
    assert [pause_after(seconds, 0, hinted) for seconds in (0.0, 0.005, 0.1)] == pytest.approx(pauses)


def test_reads_that_find_nothing_become_rarer_where_a_hint_ends_the_silence_and_nowhere_else() -> None:
    for hinted in ("everything", "nothing"):
        assert pause_after(0.0, 9, hinted) == MIN_POLL_SECONDS
    rarer = [pause_after(0.0, quiet, "after a silence") for quiet in range(7)]
    assert rarer == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0])
