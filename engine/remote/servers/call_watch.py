"""`CallWatch`: ends a call from outside, whatever it waits for: a connection, a head, a part of an answer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic

from engine.remote.interface import EngineFault
from engine.remote.servers.silence import CallSigns, ServerSigns, judge, next_look


class CallWatch:
    """For one call, from its start to its end. On the event loop."""

    def __init__(self, server: ServerSigns, silence_seconds: float, *, paused: bool = False) -> None:
        """`server` has the signs of the call's server, which its calls share."""
        now = monotonic()
        self._call = CallSigns(chunk_at=now, byte_at=now)
        self._server = server
        self._silence_seconds = silence_seconds
        self._paused = paused
        self._fault: EngineFault | None = None
        self._timeout = asyncio.timeout(None)
        self._look: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Around all of the call. Raises `EngineFault` if the call is ended, or is silent for too long."""
        try:
            async with self._timeout:
                self.look()
                yield
        except TimeoutError:
            if self._fault is not None and self._timeout.expired():
                raise self._fault from None
            raise
        finally:
            if self._look is not None:
                self._look.cancel()

    def end(self, fault: EngineFault) -> None:
        """Within `watching`: it raises this at once."""
        if self._fault is None:
            self._fault = fault
            self._timeout.reschedule(asyncio.get_running_loop().time())

    def hear_bytes(self) -> None:
        """The server has sent something, which may be no more than a comment."""
        self._call.byte_at = monotonic()

    def hear_chunk(self) -> None:
        """The server has sent a part of the answer."""
        self._call.chunk_at = self._call.byte_at = self._server.chunk_at = monotonic()

    def set_paused(self, paused: bool) -> None:
        """While paused, nothing is read, so that silence means nothing."""
        self._paused = paused
        self._call.chunk_at = self._call.byte_at = monotonic()

    def look(self) -> None:
        """Ends the call if it has been silent for too long; else looks again when that may be so."""
        now = monotonic()
        if self._paused:
            self._call.chunk_at = self._call.byte_at = now
        fault = judge(self._call, self._server, self._silence_seconds, now)
        if fault is not None:
            self.end(fault)
            return
        delay = next_look(self._call, self._server, self._silence_seconds, now) - now
        self._look = asyncio.get_running_loop().call_later(delay, self.look)
