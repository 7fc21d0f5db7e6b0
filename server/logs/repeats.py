"""`RepeatFolder`: of the same warning one line in ten seconds, and how many like it were left out. Pure."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

FOLD_SECONDS = 10.0
MAX_KEYS = 1000
"""Different warnings that are remembered. The oldest is forgotten, so one more line of it may be written."""


@dataclass(slots=True)
class _Window(Generic[T]):
    since: float
    first: T
    left_out: int = 0


class RepeatFolder(Generic[T]):
    """Decides which lines are written. Times are the caller's, in monotonic seconds.

    Call `admit` for each line, and `expire` about once a second, so that the count of a storm that has ended
    is written, too.
    """

    def __init__(self, seconds: float = FOLD_SECONDS, max_keys: int = MAX_KEYS) -> None:
        self._seconds = seconds
        self._max_keys = max_keys
        self._windows: dict[Hashable, _Window[T]] = {}
        """In the order of their beginning."""
        self._evicted: list[tuple[T, int]] = []

    def __len__(self) -> int:
        return len(self._windows)

    def admit(self, key: Hashable, line: T, now: float) -> bool:
        """Whether the line is written; if not, it is counted. `line` is what `expire` repeats."""
        window = self._windows.get(key)
        if window is not None:
            window.left_out += 1
            return False
        if len(self._windows) >= self._max_keys:
            oldest = self._windows.pop(next(iter(self._windows)))
            if oldest.left_out and len(self._evicted) < self._max_keys:
                self._evicted.append((oldest.first, oldest.left_out))
        self._windows[key] = _Window(now, line)
        return True

    def expire(self, now: float) -> list[tuple[T, int]]:
        """The lines whose window is over and how many were left out in it, if any were.

        Such a line's next window begins now: a storm that goes on is one line in each window.
        """
        due, self._evicted = self._evicted, []
        for key, window in list(self._windows.items()):
            if now - window.since < self._seconds:
                break
            del self._windows[key]
            if window.left_out:
                due.append((window.first, window.left_out))
                self._windows[key] = _Window(now, window.first)
        return due
