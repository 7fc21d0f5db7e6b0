"""How long the recorder waits between commits."""

import random
import statistics

import pytest

from server.recording.inbox import CommitPace

COMMIT_S = 0.002
COMPUTED_S = 0.0005
"""Of a commit, the rest of which the recorder waits for Postgres."""


def settled(streams: int, step: float) -> tuple[float, float]:
    """Seconds of the last of many pauses, and the tokens of a stream in each of the last commits, where an
    engine has a token for every stream each step."""
    pace, now, given, made = CommitPace(), 0.0, 0, 0
    for _ in range(50):
        made = int(now / step) - given
        given += made
        pause = pace.pause(now, COMMIT_S, COMPUTED_S, [made] * (streams if made else 0)).longest
        now += COMMIT_S + pause
        now = max(now, (given + 1) * step)  # a commit needs a token
    return pause, (now / step) / 50


@pytest.mark.parametrize(("streams", "step"), [(1, 0.0003), (1, 0.01), (8, 0.02), (32, 0.05), (256, 0.3)])
def test_few_streams_and_slow_ones_wait_twelve_milliseconds_at_most(streams: int, step: float) -> None:
    assert settled(streams, step)[0] <= 0.0121


@pytest.mark.parametrize(("streams", "step"), [(32, 0.01), (64, 0.01), (256, 0.005)])
def test_many_fast_streams_share_each_commit_by_several_tokens(streams: int, step: float) -> None:
    pause, tokens = settled(streams, step)
    assert 0.03 <= pause <= 0.036
    assert tokens >= 3


def test_no_stream_waits_longer_than_one_that_is_alone_because_its_engine_s_steps_are_long() -> None:
    pause, tokens = settled(64, 0.03)
    assert pause < 0.03
    assert tokens == pytest.approx(1, abs=0.1)


def test_a_short_commit_is_followed_by_a_short_pause() -> None:
    assert CommitPace().pause(0.0, 0.0005, 0.0002, [1]).longest == pytest.approx(0.003)


def test_a_first_commit_has_no_rate() -> None:
    assert CommitPace().pause(5.0, COMMIT_S, COMPUTED_S, [1000] * 64).longest == pytest.approx(0.012)


@pytest.mark.parametrize("computed", [0.0, 0.0005, COMMIT_S, 0.012, 0.6])
@pytest.mark.parametrize("tokens", [[], [1], [100] * 64])
def test_an_urgent_commit_waits_as_long_as_the_last_one_computed_and_never_longer_than_others(
    computed: float, tokens: list[int]
) -> None:
    pace = CommitPace()
    pace.pause(0.0, computed, computed, tokens)
    pause = pace.pause(1.0, computed, computed, tokens)
    assert pause.urgent == min(computed, pause.longest)


def waits_of_first_tokens(flush: float) -> list[float]:
    """Seconds from a first token to the begin of its commit, where eight streams have 100 tokens/s each."""
    chance, pace, now, urgent = random.Random(1), CommitPace(), 0.0, 0.0
    made = longest = 0.0
    first, waits = chance.expovariate(12), list[float]()
    while len(waits) < 2000:
        begin = now + urgent if first <= now else min(now + longest, max(first, now + urgent))
        while first <= begin:
            waits.append(begin - first)
            first += chance.expovariate(12)
        tokens, made = int(begin / 0.01 - made), begin / 0.01
        longest, urgent = pace.pause(begin, flush + COMMIT_S, COMPUTED_S, [tokens] * 8)
        now = begin + flush + COMMIT_S
    return waits


def test_a_first_token_waits_two_milliseconds_at_most_besides_its_own_flush_of_five() -> None:
    assert statistics.median(waits_of_first_tokens(0.0)) < 0.0005
    assert statistics.median(waits_of_first_tokens(0.005)) < 0.002


def test_a_slow_disk_delays_no_urgent_commit_beyond_its_own_flush() -> None:
    fast, slow = CommitPace(), CommitPace()
    assert (
        slow.pause(0.0, 0.05 + COMMIT_S, COMPUTED_S, [1]).urgent
        == fast.pause(0.0, COMMIT_S, COMPUTED_S, [1]).urgent
    )


def test_commits_of_which_each_is_urgent_compute_for_half_of_the_time_at_most() -> None:
    pace, now, computed = CommitPace(), 0.0, 0.0
    for took in (0.0005, 0.004, 0.001, 0.008) * 10:
        pause = pace.pause(now, took, took, [1])
        now += took + pause.urgent
        computed += took
    assert computed <= now / 2
