"""`Inbox`: deliveries to the recorder, gathered after a pause; `CommitPace`: how long that pause is."""

import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from time import monotonic, sleep
from typing import NamedTuple

from engine.request import Failed, Finished, Tokens
from server.recording.recorder_messages import RecorderMessage

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
MAX_WAIT = 0.004
"""Seconds after the pause for which the next commit may wait for a delivery. A delivery means that the
engine has just begun a step, beside which there is time for the commit and for publishing, which takes
longer. Pause and wait together bound the delay of a token while commits follow each other."""


class Pause(NamedTuple):
    """The pause between two commits: in seconds from `CommitPace`, as times of `monotonic` for the inbox."""

    longest: float
    urgent: float
    """The pause where an answer begins or ends: as long as the thread computed for the commit, but not longer
    than `longest`. Where that happens in every step of the engine, the recorder still has the GIL for half of
    the time at most. The commit's wait for the disk does not count: it holds no GIL, and a client waits
    longer for a slow disk already."""


NO_PAUSE = Pause(-inf, -inf)


class Inbox:
    """Any thread puts messages in, one takes them out."""

    def __init__(self, max_wait: float = MAX_WAIT, sleep: Callable[[float], object] = sleep) -> None:
        """`max_wait` seconds after a pause, the next commit begins without a delivery."""
        self._max_wait = max_wait
        self._sleep = sleep
        self._deliveries: queue.SimpleQueue[Sequence[RecorderMessage]] = queue.SimpleQueue()
        self._expected: set[str] = set()
        """Engine requests of which no message has come. Each change is one call, which is atomic."""
        self._urgent = threading.Event()
        """The first message of an expected request, or the last of any, is in the queue."""

    def __len__(self) -> int:
        """The number of deliveries."""
        return self._deliveries.qsize()

    def put(self, messages: Sequence[RecorderMessage]) -> None:
        """Never blocks."""
        self._deliveries.put(messages)
        if any(map(self._is_urgent, messages)):
            self._urgent.set()

    def expect(self, engine_request: str) -> None:
        """The first message of this request shortens the pause: its client waits for an answer to begin."""
        self._expected.add(engine_request)

    def forget(self, engine_request: str) -> None:
        """The request has ended, perhaps without a message."""
        self._expected.discard(engine_request)

    def _is_urgent(self, message: RecorderMessage) -> bool:
        """Whether the client sees the delay: it waits for the begin of an answer, or for all of it."""
        if isinstance(message, Finished | Failed):
            self._expected.discard(message.request_id)
            return True
        if isinstance(message, Tokens) and message.request_id in self._expected:
            self._expected.discard(message.request_id)
            return True
        return False

    def gather(self, pause: Pause = NO_PAUSE, timeout: float | None = None) -> list[RecorderMessage]:
        """The messages for the next commit: waits for the first, and for the end of the pause.

        If none comes for `timeout` seconds there are none. `pause` has times of `monotonic`. With the first
        message of an expected request, or the last of any request, the pause ends at its urgent time.
        """
        messages = list(self.get(timeout))
        rest = pause.longest - monotonic()
        if rest > 0:
            if self._urgent.wait(rest):
                self._sleep(max(0.0, pause.urgent - monotonic()))
            else:
                messages += self.drain()
                messages += self.get(self._max_wait)
        self._urgent.clear()  # before the queue is empty: none is missed that comes now
        return messages + self.drain()

    def get(self, seconds: float | None) -> Sequence[RecorderMessage]:
        """One delivery; none if none comes in that time, which None leaves open."""
        with suppress(queue.Empty):
            return self._deliveries.get(timeout=seconds)
        return ()

    def drain(self) -> list[RecorderMessage]:
        """The messages of all deliveries that have come."""
        messages: list[RecorderMessage] = []
        with suppress(queue.Empty):
            while True:
                messages += self._deliveries.get_nowait()
        return messages


class CommitPace:
    """Computes the pause between two commits, so that few rows carry many tokens."""

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
