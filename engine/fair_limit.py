"""`FairLimit`: a semaphore whose waiting callers are served round-robin by key. Any thread.

For short work that must not all run at once: tokenizing long texts, compiling grammars.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class _Waiting:
    key: str
    granted: bool = False


class FairLimit:
    """At most `total` holders at a time, and at most `per_key` of one key.

    A free place goes to the waiting key whose last grant is the oldest, and within a key to the first caller.
    So a key with many waiting callers delays another key's caller by one place, not by its whole queue.
    """

    def __init__(self, total: int, per_key: int = 1) -> None:
        self._total = total
        self._per_key = per_key
        self._changed = threading.Condition()
        self._waiting: list[_Waiting] = []
        self._holding: Counter[str] = Counter()
        self._granted: dict[str, int] = {}
        """By key: the sequence number of its last grant."""
        self._grants = 0

    @contextmanager
    def hold(self, key: str, seconds: float) -> Iterator[None]:
        """Holds a place while the block runs. Raises TimeoutError if none is free for `seconds`."""
        self.acquire(key, seconds)
        try:
            yield
        finally:
            self.release(key)

    def acquire(self, key: str, seconds: float) -> None:
        """Takes a place until `release`. Raises TimeoutError if none is free for `seconds`."""
        mine = _Waiting(key)
        with self._changed:
            self._waiting.append(mine)
            self._grant()
            try:
                if not self._changed.wait_for(lambda: mine.granted, seconds):
                    raise TimeoutError
            except BaseException:
                if mine.granted:  # granted as it gave up: the place goes to the next
                    self._holding[key] -= 1
                    self._grant()
                else:
                    self._waiting.remove(mine)
                self._forget(key)
                raise

    def release(self, key: str) -> None:
        """Releases a place, which another thread may have taken."""
        with self._changed:
            self._holding[key] -= 1
            self._grant()
            self._forget(key)

    def holding(self, key: str) -> int:
        """How many places this key has."""
        with self._changed:
            return self._holding.get(key, 0)

    def waiting(self, key: str) -> int:
        """How many callers of this key wait."""
        with self._changed:
            return sum(one.key == key for one in self._waiting)

    def _grant(self) -> None:
        while self._holding.total() < self._total:
            free = [one for one in self._waiting if self._holding[one.key] < self._per_key]
            if not free:
                break
            chosen = min(free, key=lambda one: self._granted.get(one.key, 0))
            chosen.granted = True
            self._waiting.remove(chosen)
            self._holding[chosen.key] += 1
            self._grants += 1
            self._granted[chosen.key] = self._grants
        self._changed.notify_all()

    def _forget(self, key: str) -> None:
        """Drops the state of a key that neither holds a place nor waits."""
        if not self._holding[key]:
            del self._holding[key]
            if not any(one.key == key for one in self._waiting):
                self._granted.pop(key, None)
