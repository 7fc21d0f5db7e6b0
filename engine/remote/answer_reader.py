"""`AnswerReader`: reads one streamed answer in its connection's callbacks, without a task for each part.

It stands between the transport and aiohttp's protocol, which parses HTTP, and takes the body out of aiohttp's
stream as soon as it is there. Waking a task for each token costs more than reading the token.
"""

import asyncio
from collections.abc import Callable

import aiohttp

from engine.remote.engine_protocol import AnswerChunk, CallFault
from engine.remote.silence_timeout import SilenceTimeout

EVENT_BYTES = 4 * 2**20
"""One event, and all comments and empty events before it; a token with 20 logprobs has 2 KiB."""
TOKENS_PER_CHUNK = 4096
"""More tokens in one event than this are no answer of an engine."""


class AnswerReader(asyncio.Protocol):
    """For one answer whose head has been received. On the event loop."""

    def __init__(
        self,
        response: aiohttp.ClientResponse,
        read_event: Callable[[bytes], AnswerChunk | None],
        receive: Callable[[AnswerChunk], bool],
        silence: SilenceTimeout,
    ) -> None:
        """`receive` returns whether more is wanted. What it and `read_event` raise ends the reading.

        `silence` is told of each chunk.
        """
        self.paused = False
        """While set, nothing is read, so that TCP slows the server down; then `take` has to be called."""
        self._response = response
        self._content = response.content
        self._read_event = read_event
        self._receive = receive
        self._silence = silence
        self._begun_event = b""
        self._barren_bytes = 0
        """Bytes since the last chunk."""
        self._ended = asyncio.Event()
        self._error: BaseException | None = None
        self._transport: asyncio.Transport | None = None
        self._parser: asyncio.Protocol = self
        """aiohttp's protocol of the transport."""

    async def read(self) -> None:
        """Reads to the end of the answer, or until no more is wanted.

        Raises `CallFault`, or what aiohttp raises.
        """
        self._begin()
        try:
            self.take()
            await self._ended.wait()
        finally:
            self._give_back()
        if self._error is not None:
            raise self._error

    def _begin(self) -> None:
        connection = self._response.connection
        if connection is None or connection.protocol is None or connection.transport is None:
            return  # the whole answer is there, or the connection is lost
        self._parser, self._transport = connection.protocol, connection.transport
        self._transport.set_protocol(self)

    def _give_back(self) -> None:
        """Leaves the connection to aiohttp, which may use it for another call."""
        if self._transport is not None:
            self._transport.set_protocol(self._parser)
            self._transport = None

    # The transport's callbacks

    def data_received(self, data: bytes) -> None:
        self._parser.data_received(data)
        self.take()

    def eof_received(self) -> bool | None:
        return self._parser.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._parser.connection_lost(exc)
        self._transport = None
        self.paused = False
        self.take()
        self._end(aiohttp.ClientConnectionError("the connection was closed"))

    def pause_writing(self) -> None:
        self._parser.pause_writing()

    def resume_writing(self) -> None:
        self._parser.resume_writing()

    # Events

    def take(self) -> None:
        """Handles the part of the answer that has arrived."""
        content = self._content
        try:
            # More than once after a long pause: taking bytes lets aiohttp parse those that it has held back.
            while not (self.paused or self._ended.is_set()) and (part := content.read_nowait()):
                self._take_part(part)
            if content.is_eof():
                self._give_back()
                if content.at_eof():
                    self._end()
        except Exception as error:  # noqa: BLE001 - `read` raises it
            self._end(error)

    def _take_part(self, part: bytes) -> None:
        *events, self._begun_event = (self._begun_event + part).split(b"\n\n")
        self._barren_bytes += len(part)
        for event in events:
            chunk = self._read_event(event[5:].strip()) if event.startswith(b"data:") else None
            if chunk is None:
                continue
            if len(chunk.token_ids) > TOKENS_PER_CHUNK:
                raise CallFault("failed", f"one event has {len(chunk.token_ids)} tokens")
            self._barren_bytes = len(self._begun_event)
            self._silence.hear()
            if not self._receive(chunk):
                self._end()
                return
        if self._barren_bytes > EVENT_BYTES:
            raise CallFault("failed", f"it sent more than {EVENT_BYTES} bytes without a token")

    def _end(self, error: BaseException | None = None) -> None:
        if not self._ended.is_set():
            self._error = error
            self._ended.set()
