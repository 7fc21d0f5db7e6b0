"""A request's body: read once its caller is known, within its share of memory, or refused and drained."""

import asyncio
from contextlib import suppress

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.errors import BodyTooLarge, BodyTooSlow, ClientGone
from server.http.asgi.content_encoding import unpacked
from server.limits.concurrency import SharedLimit

_DRAIN_FACTOR = 8
"""A body over the limit is still read, up to this many times it, so that the client can hear the answer."""
_LINGER_S = 2.0
"""How long a refused request's body is read and dropped: a close before its end would destroy the answer."""
_DROPPED_BYTES = 1024 * 1024
"""A body for an address that is none is dropped up to there, and its connection used on."""
_MOST_LINGERING = 64
"""Refused requests whose bodies are read at the same time; any others are closed at once."""


class Body:
    """The body of one request, which `read` returns; `release` when it is used no more."""

    def __init__(self, request: Request, receive: Receive, limit: SharedLimit) -> None:
        """`limit` counts the bytes of bodies in memory."""
        self.whole = False
        """It was read to its end, or the client has gone."""
        self._request = request
        self._receive = receive
        self._limit = limit
        self._tenant = ""
        self._reserved = 0

    async def read(self, tenant: str, most: int, seconds: float) -> bytes:
        """The content, at most `most` bytes.

        Raises BodyTooLarge, BodyTooSlow after so many seconds, ClientGone, and TooManyRequests or Overloaded
        when the tenant or the server has too many bytes in memory already.
        """
        self._tenant = tenant
        try:
            async with asyncio.timeout(seconds):
                return await self._read(most)
        except TimeoutError:
            raise BodyTooSlow(seconds) from None

    async def _read(self, most: int) -> bytes:
        declared = self._request.headers.get("content-length", "")
        size = int(declared) if declared.isdecimal() and len(declared) < 20 else 0
        if size > most * _DRAIN_FACTOR:
            raise BodyTooLarge(most)
        if size <= most:
            self._reserve(size)
        chunks: list[bytes] = []
        total = 0
        while not self.whole and total <= most * _DRAIN_FACTOR:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self.whole = True
                raise ClientGone
            self.whole = not message.get("more_body", False)
            total += len(message.get("body", b""))
            if total <= most:
                self._reserve(total)
                chunks.append(message.get("body", b""))
            else:
                chunks.clear()
                self.release()
        if total > most:
            raise BodyTooLarge(most)
        return b"".join(chunks)

    def unpack(self, content: bytes, coding: str, most: int) -> bytes:
        """The content without its coding; both count. For a thread. Raises as `unpacked` and `read` do."""
        packed = len(content)
        return unpacked(content, coding, most, lambda size: self._reserve(packed + min(size, most)))

    def _reserve(self, size: int) -> None:
        if size > self._reserved:
            self._limit.acquire(self._tenant, size - self._reserved)
            self._reserved = size

    def release(self) -> None:
        """Gives back what the content counted for."""
        if self._reserved:
            self._limit.release(self._tenant, self._reserved)
            self._reserved = 0


class Lingering:
    """How many refused requests' bodies are being read, of all connections."""

    def __init__(self, most: int = _MOST_LINGERING) -> None:
        self._free = most

    async def answer(self, answer: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Reads and drops a short body, then answers; the connection can be used again.

        What is longer, or does not arrive in time, is answered as `send` does.
        """
        if await self._drop(receive):
            await answer(scope, receive, send)
        else:
            await self.send(answer, scope, receive, send)

    async def _drop(self, receive: Receive) -> bool:
        """Whether the body has ended, or the client has gone, within the time and the bytes there are."""
        if self._free <= 0:
            return False
        self._free -= 1
        left = _DROPPED_BYTES
        try:
            async with asyncio.timeout(_LINGER_S):
                while left >= 0:
                    message = await receive()
                    left -= len(message.get("body", b""))
                    if message["type"] == "http.disconnect" or not message.get("more_body", False):
                        return True
        except TimeoutError:
            pass
        finally:
            self._free += 1
        return False

    async def send(self, answer: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends an answer to a request whose body was not read, then reads and drops the body for a while.

        The answer must have a Content-Length: its last message is held back until the body has ended.
        """
        last: Message = {"type": "http.response.body", "body": b"", "more_body": False}

        async def send_open(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
            else:
                message = {**message, "more_body": True}
            await send(message)

        ended = asyncio.Event()
        draining = asyncio.ensure_future(_drain(receive, ended))
        try:
            await answer(scope, receive, send_open)
            if self._free > 0:
                self._free -= 1
                try:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_LINGER_S):
                            await ended.wait()
                finally:
                    self._free += 1
            await send(last)  # upon which the client counts as gone, which ends the draining
        except BaseException:
            draining.cancel()
            raise


async def _drain(receive: Receive, ended: asyncio.Event) -> None:
    """Drops what comes until the client has gone; sets the event when the body has ended."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            ended.set()
        if message["type"] == "http.disconnect":
            return
