"""OpenConnections: the answers and WebSockets that are open, by API key, to end those of a key."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress


class KeyEnded(Exception):
    """The API key of this answer or WebSocket is not valid any more, and ends what runs with it."""


class OpenConnections:
    """Used on the event loop; `keys` and `end` may be called by any thread."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._scopes: dict[str, set[asyncio.Timeout]] = {}

    @asynccontextmanager
    async def tracked(self, key_id: str | None) -> AsyncIterator[None]:
        """Has the block interrupted by KeyEnded when its key is ended; without a key it never is."""
        if key_id is None:
            yield
            return
        self._loop = asyncio.get_running_loop()
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._scopes.setdefault(key_id, set()).add(scope)
                try:
                    yield
                finally:
                    self._forget(key_id, scope)
        except TimeoutError:
            if scope.expired():
                raise KeyEnded from None
            raise

    def _forget(self, key_id: str, scope: asyncio.Timeout) -> None:
        scopes = self._scopes.get(key_id, set())
        scopes.discard(scope)
        if not scopes:
            self._scopes.pop(key_id, None)

    @property
    def keys(self) -> list[str]:
        """The keys with which something is open."""
        return list(self._scopes)

    def end(self, keys: Iterable[str]) -> None:
        """Interrupts all that is open with these keys."""
        ended = [key for key in keys if key in self._scopes]
        if ended and self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: the process ends
                self._loop.call_soon_threadsafe(self._end, ended)

    def _end(self, keys: Iterable[str]) -> None:
        for key in keys:
            for scope in list(self._scopes.get(key, ())):
                scope.reschedule(asyncio.get_running_loop().time())
