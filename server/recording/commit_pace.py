"""`CommitPace`: how long the recorder waits between two commits, so that few rows carry many tokens. Pure."""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

PAUSE_FACTOR = 6.0
MAX_PAUSE = 0.012
"""After a commit that took t seconds, wait min(6 t, 12 ms) before the next. Commits compete with the engine
thread for the GIL; this caps them at a seventh of the time. Tokens that arrive meanwhile are merged into
longer deltas."""
BUSY_TOKENS_PER_SECOND = 1000
BUSY_SECONDS_PER_RUN = 0.001
MAX_BUSY_PAUSE = 0.036
"""From 1,000 tokens a second on, the pause grows with their rate, up to 36 ms, and up to 1 ms for each run. A
row costs about 70 us of CPU from the commit to the client's socket, a further token in it 33 us. At 32
streams of 100 tokens/s each delta has three or four tokens then, and a token costs two thirds of what it did.
Neither few streams nor those of an engine whose steps are longer than the pause are delayed by it."""


class Pause(NamedTuple):
    """What is between two commits: in seconds from `CommitPace`, as times of `monotonic` for the inbox."""

    longest: float
    urgent: float
    """Where an answer begins or ends: as long as the thread computed for the commit, but not longer than
    `longest`. Where that happens in every step of the engine, the recorder still has the GIL for half of the
    time at most. The commit's wait for the disk does not count: it holds no GIL, and a client waits longer
    for a slow disk already."""


NO_PAUSE = Pause(-inf, -inf)


class CommitPace:
    """Call `pause` after each commit."""

    def __init__(self) -> None:
        self._began_at = -inf
        """When the last commit began."""

    def pause(self, began_at: float, took: float, computed: float, tokens: Sequence[int]) -> Pause:
        """The pause after a commit, in seconds.

        `began_at` is its begin on any clock, `took` its duration in seconds, `computed` the seconds of CPU
        that the thread spent on it, `tokens` how many tokens it has of each run.
        """
        rate = sum(tokens) / max(began_at - self._began_at, 1e-6)
        self._began_at = began_at
        busy = min(
            MAX_PAUSE * rate / BUSY_TOKENS_PER_SECOND, BUSY_SECONDS_PER_RUN * len(tokens), MAX_BUSY_PAUSE
        )
        longest = max(min(PAUSE_FACTOR * took, MAX_PAUSE), busy)
        return Pause(longest, min(computed, longest))
