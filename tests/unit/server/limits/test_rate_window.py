"""The window that no minute exceeds: what is booked, given back, and when there is room again."""

from hypothesis import given
from hypothesis import strategies as st

from server.limits.rate_window import HOLD_SECONDS, RateWindow
from tests.support.builders import examples

SECONDS = 6
LIMIT = 10


def make(*slots: int, newest: int = 100) -> RateWindow:
    return RateWindow.of(newest, slots, SECONDS)


def test_a_new_window_has_the_whole_limit() -> None:
    window = make()
    assert len(window.slots) == SECONDS + HOLD_SECONDS
    assert (window.used, window.left(LIMIT)) == (0, LIMIT)
    assert (window.seconds_until(LIMIT, LIMIT), window.seconds_until_empty()) == (0, 0)


def test_what_does_not_fit_takes_nothing() -> None:
    window = make()
    assert window.take_within(LIMIT, 7)
    assert not window.take_within(LIMIT, 4)
    assert window.take_within(LIMIT, 3)
    assert window.left(LIMIT) == 0


def test_units_count_until_the_window_and_their_use_have_passed() -> None:
    window = make()
    window.take(LIMIT)
    assert window.seconds_until(LIMIT, 1) == SECONDS + HOLD_SECONDS == window.seconds_until_empty()
    window.advance(100 + SECONDS + HOLD_SECONDS - 1)
    assert (window.left(LIMIT), window.seconds_until(LIMIT, 1)) == (0, 1)
    window.advance(100 + SECONDS + HOLD_SECONDS)
    assert (window.left(LIMIT), window.seconds_until_empty()) == (LIMIT, 0)


def test_a_clock_that_is_set_back_a_little_changes_nothing() -> None:
    window = make()
    window.take(4)
    window.advance(100 - SECONDS)
    assert (window.newest, window.used) == (100, 4)


def test_a_clock_that_is_set_back_far_locks_nobody_out_until_it_catches_up() -> None:
    window = make(newest=100_000)
    window.take(LIMIT)
    window.advance(50)
    assert (window.newest, window.left(LIMIT)) == (50, 0)
    window.advance(50 + SECONDS + HOLD_SECONDS)
    assert window.left(LIMIT) == LIMIT


def test_units_are_given_back_to_their_second_or_to_those_before_it() -> None:
    window = make(1, 2, 3)
    window.refund(99, 4)
    assert window.slots[-3:] == [0, 0, 3]
    window.refund(90, 1)
    window.refund(100 - SECONDS - HOLD_SECONDS, 1)
    assert window.used == 3
    window.refund(100, 50)
    assert window.used == 0


def test_more_than_the_limit_never_fits_and_charges_may_exceed_it() -> None:
    window = make()
    assert window.seconds_until(LIMIT, LIMIT + 1) is None
    window.take(3 * LIMIT)
    assert window.left(LIMIT) == 0
    assert window.seconds_until(LIMIT, 1) == SECONDS + HOLD_SECONDS


def test_a_stored_window_of_another_length_is_read() -> None:
    assert RateWindow.of(5, range(100), SECONDS).slots == list(range(92, 100))
    assert RateWindow.of(5, [7], SECONDS).slots == [0] * 7 + [7]


STEPS = st.lists(
    st.tuples(
        st.floats(0, 3),
        st.integers(1, 4),
        st.floats(0, HOLD_SECONDS, exclude_max=True),
        st.booleans(),
    ),
    max_size=60,
)
"""Seconds until units are asked for, how many, how long after the beginning of the second they are used, and
whether they are given back instead."""


@given(STEPS)
@examples(300)
def test_no_window_of_time_has_more_than_the_limit_however_units_are_used(
    steps: list[tuple[float, int, float, bool]],
) -> None:
    window, now = make(newest=0), 0.0
    uses: list[tuple[float, int]] = []
    for passed, amount, delay, returned in steps:
        now += passed
        window.advance(int(now))
        if not window.take_within(LIMIT, amount):
            continue
        if returned:
            window.refund(int(now), amount)
        else:
            uses.append((max(now, int(now) + delay), amount))
    for start, _ in uses:
        assert sum(amount for at, amount in uses if start <= at <= start + SECONDS) <= LIMIT


@given(STEPS, st.integers(1, LIMIT))
@examples(200)
def test_there_is_room_when_it_was_foretold_and_not_a_second_before(
    steps: list[tuple[float, int, float, bool]], amount: int
) -> None:
    window, now = make(newest=0), 0.0
    for passed, units, _, _ in steps:
        now += passed
        window.advance(int(now))
        window.take_within(LIMIT, units)
    seconds = window.seconds_until(LIMIT, amount)
    assert seconds is not None
    for earlier in range(seconds):
        window.advance(int(now) + earlier)
        assert window.left(LIMIT) < amount
    window.advance(int(now) + seconds)
    assert window.left(LIMIT) >= amount
