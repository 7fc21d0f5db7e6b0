"""Bounded label values: the first ones that come, and `other` for all that follow."""

import threading

OTHER = "other"


class BoundedLabels:
    """Label values of one kind, at most `limit` of them, so that no caller can add series without end.

    Thread-safe. What has been given once is given for ever: a series never changes its name.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: set[str] = set()
        self._lock = threading.Lock()

    def of(self, value: str) -> str:
        """The value itself, or `other` if there were `limit` before it."""
        if value in self._known:
            return value
        with self._lock:
            if len(self._known) >= self._limit:
                return OTHER
            self._known.add(value)
        return value
