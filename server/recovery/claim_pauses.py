"""`ClaimPauses`: when claiming stops, and for how long, because what is queued cannot be read. Pure."""

from server.store.database_errors import ReadFailure

MOST_FAILURES = 3
"""Rows in a row that cannot be read, from which on a wrong release or environment must be the cause."""
FIRST_PAUSE_SECONDS = 1.0
MAX_PAUSE_SECONDS = 30.0


class ClaimPauses:
    """Growing pauses while nothing can be read. Times are the caller's, in monotonic seconds.

    One thread writes; any thread reads `trouble`.
    """

    def __init__(self) -> None:
        self.trouble: str | None = None
        """Why claiming pauses, or has paused without a row that could be read since."""
        self._failures = 0
        self._seconds = 0.0
        self._until = 0.0

    def is_on(self, now: float) -> bool:
        """Whether nothing is to be claimed at this time."""
        return now < self._until

    def failed(self, failure: ReadFailure, reason: str, now: float) -> bool:
        """Counts a row that could not be read; returns whether a pause begins.

        A fault of the environment is no row's: it begins one at once.
        """
        self._failures += 1
        if failure != "environment" and self._failures < MOST_FAILURES:
            return False
        self._seconds = min(max(FIRST_PAUSE_SECONDS, 2 * self._seconds), MAX_PAUSE_SECONDS)
        self._until = now + self._seconds
        self.trouble = f"what is queued cannot be read: {reason}"
        return True

    def succeeded(self) -> None:
        """A row was read, or none waits."""
        if self._failures:
            self._failures, self._seconds, self._until, self.trouble = 0, 0.0, 0.0, None
