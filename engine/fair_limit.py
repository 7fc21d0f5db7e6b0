"""`FairLimit`: a bounded number of holders at a time, for which waiting callers take turns by key.

Threads wait in `hold`, coroutines in `holding`. For work that must not all run at once: handlers, tool calls,
tokenizing long texts, compiling grammars, reading pictures.
"""

import asyncio
import threading
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial


class NoSlot(TimeoutError):
    """No slot was free within the time."""


@dataclass(eq=False, slots=True)
class _Caller:
    key: str
    limits: Mapping[Hashable, int]
    wake: Callable[[], object]
    """Called with the lock held when a caller that waits gets its slot."""
    has_slot: bool = False


class FairLimit:
    """`total` slots, of which a key has at most its own limit. Thread-safe.

    A free slot goes to the waiting key whose last one is the longest ago, and within a key to the first
    caller within all limits. So neither a key with many callers nor what all of them wait for delays others.
    """

    def __init__(self, total: int, per_key: int = 1) -> None:
        self.total = total
        self._per_key = per_key
        self._lock = threading.Lock()
        self._used = 0
        self._uses: Counter[Hashable] = Counter()
        """Slots in use by each limited thing."""
        self._waiting: dict[str, deque[_Caller]] = {}
        """Callers by key. No queue is empty."""
        self._turns: dict[str, int] = {}
        """By key: the number of its last grant."""
        self._grants = 0

    @contextmanager
    def hold(self, key: str, seconds: float) -> Iterator[None]:
        """A slot for as long as the block runs. Raises NoSlot if none is free within `seconds`."""
        self.acquire(key, seconds)
        try:
            yield
        finally:
            self.release(key)

    def acquire(self, key: str, seconds: float) -> None:
        """Takes a slot until `release`. Raises NoSlot if none is free within `seconds`."""
        is_granted = threading.Event()
        caller = self._ask(key, {}, is_granted.set)
        try:
            if not caller.has_slot and not is_granted.wait(seconds):
                raise NoSlot
        except BaseException:
            self._leave(caller)
            raise

    def release(self, key: str) -> None:
        """Releases a slot, which another thread may have taken."""
        self._release(key, {key: self._per_key})

    @asynccontextmanager
    async def holding(
        self, key: str, seconds: float, limits: Mapping[Hashable, int] | None = None
    ) -> AsyncIterator[None]:
        """A slot for as long as the block runs. Raises NoSlot if none is free within `seconds`.

        `limits` are further ones, by name: each caller takes one of each. The key as name replaces its limit.
        """
        is_granted = asyncio.Event()
        wake = partial(asyncio.get_running_loop().call_soon_threadsafe, is_granted.set)
        caller = self._ask(key, limits or {}, wake)
        try:
            if not caller.has_slot:
                try:
                    async with asyncio.timeout(seconds):
                        await is_granted.wait()
                except TimeoutError:
                    raise NoSlot from None
            yield
        finally:
            self._leave(caller)

    @property
    def used(self) -> int:
        return self._used

    def used_by(self, key: str) -> int:
        with self._lock:
            return self._uses.get(key, 0)

    def waiting(self, key: str) -> int:
        with self._lock:
            return len(self._waiting.get(key, ()))

    def _ask(self, key: str, limits: Mapping[Hashable, int], wake: Callable[[], object]) -> _Caller:
        caller = _Caller(key, {key: self._per_key, **limits}, wake)
        with self._lock:
            self._waiting.setdefault(key, deque()).append(caller)
            self._grant(caller)
        return caller

    def _leave(self, caller: _Caller) -> None:
        """Releases the caller's slot, or its place among those that wait."""
        with self._lock:
            has_slot = caller.has_slot
            if not has_slot:
                self._remove(caller)
                self._forget(caller.key)
        if has_slot:
            self._release(caller.key, caller.limits)

    def _release(self, key: str, limits: Mapping[Hashable, int]) -> None:
        with self._lock:
            self._count(limits, -1)
            self._grant()
            self._forget(key)

    def _grant(self, asking: _Caller | None = None) -> None:
        """Gives free slots to those that wait, while one is within all its limits; wakes all but `asking`."""
        while self._waiting and self._used < self.total:
            first_callers = [caller for queue in self._waiting.values() if (caller := self._next(queue))]
            if not first_callers:
                return
            caller = min(first_callers, key=lambda caller: self._turns.get(caller.key, 0))
            self._remove(caller)
            self._count(caller.limits, 1)
            self._grants += 1
            self._turns[caller.key] = self._grants
            caller.has_slot = True
            if caller is not asking:
                caller.wake()

    def _next(self, queue: deque[_Caller]) -> _Caller | None:
        """The first of a key's callers that is within all limits."""
        key = queue[0].key
        if self._uses[key] >= queue[0].limits[key]:
            return None
        return next((caller for caller in queue if self._fits(caller)), None)

    def _fits(self, caller: _Caller) -> bool:
        return all(self._uses[name] < most for name, most in caller.limits.items())

    def _count(self, limits: Mapping[Hashable, int], change: int) -> None:
        self._used += change
        for name in limits:
            self._uses[name] += change
            if not self._uses[name]:
                del self._uses[name]

    def _remove(self, caller: _Caller) -> None:
        queue = self._waiting[caller.key]
        queue.remove(caller)
        if not queue:
            del self._waiting[caller.key]

    def _forget(self, key: str) -> None:
        """Drops the turn of a key that neither has a slot nor waits."""
        if key not in self._uses and key not in self._waiting:
            self._turns.pop(key, None)
