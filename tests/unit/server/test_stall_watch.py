"""What counts as a stall of the interpreter."""

import pytest

from server.stall_watch import TICK_SECONDS, Stalls, StallWatch


def test_wake_ups_that_come_late_are_counted_and_long_ones_logged(caplog: pytest.LogCaptureFixture) -> None:
    watch = StallWatch()
    for seconds in (TICK_SECONDS, TICK_SECONDS + 0.05):
        watch.add_wait(seconds)
    assert watch.stalls == Stalls()
    watch.add_wait(TICK_SECONDS + 0.25)
    assert caplog.records == []
    watch.add_wait(TICK_SECONDS + 4.5)
    assert watch.stalls.count == 2
    assert watch.stalls.longest_seconds == pytest.approx(4.5)
    assert watch.stalls.total_seconds == pytest.approx(4.75)
    assert "the interpreter stood still for 4.5 s" in caplog.text
