"""Request bodies: read within limits, decompressed, drained when refused."""

import asyncio
from contextlib import suppress

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.errors import BodyTooLarge, BodyTooSlow, ClientGone
from server.http.asgi.content_codings import decompress
from server.limits.shared_limit import SharedLimit

_DRAIN_FACTOR = 8
"""A body over the limit is read and dropped up to this multiple of the limit: many clients read the
answer only after they have sent the whole body."""
LINGER_S = 2.0
"""Seconds for draining a refused request's body: closing with unread bytes resets and destroys the answer."""
_DROPPED_BYTES = 1024 * 1024
"""Bytes up to which the body of a 404 or 405 is drained so that its connection can be reused."""


class RequestBody:
    """The body of one request. `release` gives its memory back to the limit."""

    def __init__(self, request: Request, receive: Receive, limit: SharedLimit) -> None:
        """`limit` counts the bytes of bodies in memory."""
        self.whole = False
        """The body was read to its end, or the client has disconnected."""
        self._request = request
        self._receive = receive
        self._limit = limit
        self._tenant = ""
        self._reserved = 0

    async def read(self, tenant: str, most: int, seconds: float) -> bytes:
        """The content, at most `most` bytes.

        Raises BodyTooLarge, BodyTooSlow after `seconds`, ClientGone, and TooManyRequests or Overloaded at a
        limit of bytes in memory.
        """
        self._tenant = tenant
        if self._request.method == "GET" and not _has_body(self._request.scope):
            self.whole = True
            return b""
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
        """The decompressed content; both copies count. Blocks. Raises as `decompress` and `read` do."""
        packed = len(content)
        return decompress(content, coding, most, lambda size: self._reserve(packed + min(size, most)))

    def _reserve(self, size: int) -> None:
        if size > self._reserved:
            self._limit.acquire(self._tenant, size - self._reserved)
            self._reserved = size

    def release(self) -> None:
        if self._reserved:
            self._limit.release(self._tenant, self._reserved)
            self._reserved = 0


async def drain_and_answer(answer: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Drains a short body, so that the connection can be reused, then answers; else as `answer_unread`."""
    if not _has_body(scope) or await _drop(receive):
        await answer(scope, receive, send)
    else:
        await answer_unread(answer, scope, receive, send)


async def _drop(receive: Receive) -> bool:
    """Whether the body ended, or the client disconnected, within the limits of time and bytes."""
    remaining = _DROPPED_BYTES
    with suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            while remaining >= 0:
                message = await receive()
                remaining -= len(message.get("body", b""))
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return True
    return False


def _has_body(scope: Scope) -> bool:
    headers = Headers(scope=scope)
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


async def answer_unread(answer: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Sends an answer, with a Content-Length, to a request whose body was not read, which is drained for
    `LINGER_S`: nginx's lingering close. Its last message is delayed until then.
    """
    if not _has_body(scope):
        await answer(scope, receive, send)
        return

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
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                await ended.wait()
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        # Hypercorn then reports a disconnect, which ends the draining.
    except BaseException:
        draining.cancel()
        raise


async def _drain(receive: Receive, ended: asyncio.Event) -> None:
    """Drops messages until the client disconnects; sets `ended` at the end of the body."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            ended.set()
        if message["type"] == "http.disconnect":
            return
