"""`Pace`: a long loop of Python releases the GIL regularly."""

import time

BURST_SECONDS = 0.0001
REST_SECONDS = 0.0004
"""A check runs for `BURST_SECONDS`, then sleeps for `REST_SECONDS`. A step on a CPU releases the GIL at each
of its hundreds of operations, and would wait to get it back after each."""


class Pace:
    """Releases the GIL regularly."""

    def __init__(self) -> None:
        self._rested = time.perf_counter()

    def keep(self) -> None:
        if time.perf_counter() - self._rested > BURST_SECONDS:
            time.sleep(REST_SECONDS)
            self._rested = time.perf_counter()
