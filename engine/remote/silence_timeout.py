"""`SilenceTimeout`: a call that has given nothing for a time is lost, and its server is probed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic

from engine.remote.engine_protocol import CallFault
from engine.remote.router import EngineServer


class SilenceTimeout:
    """Ends one call, whatever it waits for: a connection, a head, a part of an answer. On the event loop.

    A server sends nothing for a call that waits in its queue, for as long as others take. So for a call that
    has not begun the chunks of its server's other calls count, too. Comments count for none: llama-server
    sends them beside a computation, whether that goes on or not.
    """

    def __init__(self, server: EngineServer, seconds: float, *, paused: bool = False) -> None:
        self._server = server
        self._seconds = seconds
        self._paused = paused
        self._begun = False
        self._heard_at = monotonic()
        self._timeout = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Encloses the whole call. Raises `CallFault` if it is silent for too long."""
        try:
            async with self._timeout:
                self.check()
                yield
        except TimeoutError:
            if self._timeout.expired():
                message = f"it does not answer (silence of {self._seconds:g} s)"
                raise CallFault("failed", message) from None
            raise
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def hear(self) -> None:
        """The server has sent a part of the answer."""
        self._begun = True
        self._heard_at = self._server.chunk_at = monotonic()

    def set_paused(self, paused: bool) -> None:
        """While paused, nothing is read, so that silence means nothing."""
        self._paused = paused
        self._heard_at = monotonic()

    def check(self) -> None:
        """Ends the call if it has been silent for too long; else checks again when that may be so."""
        now = monotonic()
        if self._paused:
            self._heard_at = now
        silent_since = self._heard_at if self._begun else max(self._heard_at, self._server.chunk_at)
        left = silent_since + self._seconds - now
        loop = asyncio.get_running_loop()
        if left > 0:
            self._timer = loop.call_later(left, self.check)
        else:
            self._timeout.reschedule(loop.time())
