"""OpenConnections: the answers and WebSockets that are open, by API key, to end those of a key."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass


class KeyEnded(Exception):
    """The API key of this answer or WebSocket is not valid any more, and ends what runs with it."""


@dataclass(eq=False, slots=True)
class _Open:
    task: "asyncio.Task[object]"
    cancels: int = 0


class OpenConnections:
    """Used on the event loop; `keys` and `end` may be called by any thread."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open: dict[str, set[_Open]] = {}

    @asynccontextmanager
    async def tracked(self, key_id: str | None) -> AsyncIterator[None]:
        """Has the block interrupted by KeyEnded when its key is ended; without a key it never is."""
        task = asyncio.current_task()
        if key_id is None or task is None:
            yield
            return
        self._loop = task.get_loop()
        entry, cancelled_before = _Open(task), task.cancelling()
        self._open.setdefault(key_id, set()).add(entry)
        try:
            yield
        except asyncio.CancelledError:
            for _ in range(entry.cancels):
                task.uncancel()
            if entry.cancels and task.cancelling() <= cancelled_before:
                raise KeyEnded from None
            raise
        finally:
            self._forget(key_id, entry)

    def _forget(self, key_id: str, entry: _Open) -> None:
        entries = self._open.get(key_id, set())
        entries.discard(entry)
        if not entries:
            self._open.pop(key_id, None)

    @property
    def keys(self) -> list[str]:
        """The keys with which something is open."""
        return list(self._open)

    def end(self, keys: Iterable[str]) -> None:
        """Interrupts all that is open with these keys; repeat it: `asyncio.wait_for` may lose one."""
        ended = [key for key in keys if key in self._open]
        if ended and self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: the process ends
                self._loop.call_soon_threadsafe(self._end, ended)

    def _end(self, keys: Iterable[str]) -> None:
        for key in keys:
            for entry in list(self._open.get(key, ())):
                entry.cancels += 1
                entry.task.cancel()
