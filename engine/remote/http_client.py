"""`EngineClient`: sends calls to engine servers with aiohttp and reads their answers, on the event loop.

All that a server sends has a bound: in bytes, for an event and for an answer that is not streamed, and in
seconds of silence. Redirects and compressed bodies are refused: no engine sends them.
"""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from time import monotonic

import aiohttp

from engine.remote.engine_protocol import (
    AnswerChunk,
    CallFault,
    EngineProtocol,
    GenerateCall,
    HttpRequest,
    status_fault,
)
from engine.remote.server_choice import EngineServer
from engine.request import describe

CONNECT_SECONDS = 5.0
KEEP_ALIVE_SECONDS = 3.0
"""Seconds after which an idle connection is not used again: vLLM and llama-server close theirs after 5 s, and
a call that is sent at that moment fails as if the server was lost."""
LIVENESS_SECONDS, LIVENESS_PROBES = 20, 3
"""TCP keepalive: seconds between probes of a silent connection, and unanswered probes in a row that end it. A
call may wait in a server's queue for longer than firewalls remember a connection of which they see nothing,
and one that they forget gets no answer any more."""
PROBE_SECONDS = 5.0
"""Seconds for the whole answer to a probe, an abort, or a question for the load."""
PROBE_BYTES = 4 * 2**20
"""/metrics of a server with many adapters has some hundred KiB."""
EVENT_BYTES = 4 * 2**20
"""One event, and all comments and empty events before it; a token with 20 logprobs has 2 KiB."""
TOKENS_PER_CHUNK = 4096
"""More tokens in one event than this are no answer of an engine."""
ERROR_BYTES = 16 * 2**10
"""The most that is read of an error's body."""
BYTES_PER_LOGPROB = 160
"""Bound for prompt logprobs in an answer that is not streamed; vLLM takes about 80."""


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
    async def watching(self, running: "set[SilenceTimeout]") -> AsyncIterator[None]:
        """Encloses a call, which `running` has meanwhile. Raises `CallFault` if it is silent for too long."""
        running.add(self)
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
            running.discard(self)
            if self._timer is not None:
                self._timer.cancel()

    def hear(self) -> None:
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
        remaining = silent_since + self._seconds - now
        loop = asyncio.get_running_loop()
        if remaining > 0:
            self._timer = loop.call_later(remaining, self.check)
        else:
            self._timeout.reschedule(loop.time())


class AnswerReader(asyncio.Protocol):
    """Reads one streamed answer, whose head has been received, in its connection's callbacks.

    It stands between the transport and aiohttp's protocol, which parses HTTP, and takes the body out of
    aiohttp's stream as soon as it is there: waking a task for each token costs more than reading the token.
    """

    def __init__(
        self,
        response: aiohttp.ClientResponse,
        read_event: Callable[[bytes], AnswerChunk | None],
        receive: Callable[[AnswerChunk], bool],
        silence: SilenceTimeout,
    ) -> None:
        """`receive` returns whether more is wanted; errors of it and of `read_event` end the reading."""
        self.paused = False
        """While set, nothing is read, so that TCP slows the server down; then `take` has to be called."""
        self._response = response
        self._read_event = read_event
        self._receive = receive
        self._silence = silence
        self._begun_event = b""
        self._barren_bytes = 0
        self._ended = asyncio.Event()
        self._error: BaseException | None = None
        self._transport: asyncio.Transport | None = None
        self._parser: asyncio.Protocol = self

    async def read(self, running: "set[AnswerReader]") -> None:
        """Reads to the end, or until no more is wanted; `running` has it meanwhile. Raises `CallFault`, or as
        aiohttp does.
        """
        running.add(self)
        connection = self._response.connection
        # Else the whole answer is there, or the connection is lost.
        if connection is not None and connection.protocol is not None and connection.transport is not None:
            self._parser, self._transport = connection.protocol, connection.transport
            self._transport.set_protocol(self)
        try:
            self.take()
            await self._ended.wait()
        finally:
            running.discard(self)
            self._give_back()
        if self._error is not None:
            raise self._error

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
        content = self._response.content
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


class EngineClient:
    """Calls of one kind of server. `open` before use, on the event loop."""

    def __init__(
        self,
        protocol: EngineProtocol,
        api_key: str | None,
        ca_file: Path | None,
        silence_timeout: float,
        trace_parent_of: Callable[[str], str | None] = lambda _request_id: None,
        keep_alive: float = KEEP_ALIVE_SECONDS,
    ) -> None:
        """`silence_timeout` is in seconds, as `SilenceTimeout` counts them."""
        self._protocol = protocol
        self._trace_parent_of = trace_parent_of
        self._headers = {"Accept-Encoding": "identity", "Content-Type": "application/json"}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._tls = ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
        self._silence_timeout = silence_timeout
        self._keep_alive = keep_alive
        self._session: aiohttp.ClientSession | None = None
        self._paused = False
        self._silences: set[SilenceTimeout] = set()
        """The time-outs of the calls that run."""
        self._readers: set[AnswerReader] = set()
        """The readers of the answers that arrive."""

    def open(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0, ssl=self._tls, keepalive_timeout=self._keep_alive, socket_factory=_make_socket
            ),
            headers=self._headers,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def set_paused(self, paused: bool) -> None:
        """While paused, no streamed answer is read. Idempotent."""
        if paused != self._paused:
            self._paused = paused
            for silence in self._silences:
                silence.set_paused(paused)
            for reader in list(self._readers):
                reader.paused = paused
                reader.take()

    async def fetch(
        self, url: str, request: HttpRequest, seconds: float = PROBE_SECONDS
    ) -> tuple[int, bytes]:
        """Status and body of a small answer, which comes within that time. Raises `CallFault`."""
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS)
        async with self._send(url, request, timeout) as response:
            return response.status, await _read(response, PROBE_BYTES)

    async def generate(
        self, server: EngineServer, call: GenerateCall, receive: Callable[[AnswerChunk], bool]
    ) -> None:
        """Makes the call and gives the parts of its answer to `receive`, until that returns False.

        `server` has been probed. Leaving closes the connection. Raises `CallFault`, and as `receive` does.
        """
        assert server.description is not None
        url, model = server.url, server.description.model
        silence = SilenceTimeout(server, self._silence_timeout, paused=self._paused)
        async with silence.watching(self._silences):
            if call.request.images:  # takes 0.2 s for the largest
                request = await asyncio.to_thread(self._protocol.generate_request, call, model)
            else:
                request = self._protocol.generate_request(call, model)
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
            trace_parent = self._trace_parent_of(call.request.request_id)
            async with self._send(url, request, timeout, trace_parent) as response:
                if response.status != 200:
                    body = await _read(response, ERROR_BYTES, cut=True)
                    raise status_fault(response.status, body)
                if request.streamed:
                    read_event = partial(self._protocol.read_event, call=call)
                    reader = AnswerReader(response, read_event, receive, silence)
                    reader.paused = self._paused
                    await reader.read(self._readers)
                    return
                count = 2 + (call.request.prompt_logprobs or 0)
                limit = PROBE_BYTES + len(call.tokens) * count * BYTES_PER_LOGPROB
                body = await _read(response, limit, heard=silence.hear)
                answer = await asyncio.to_thread(self._protocol.read_answer, body, call)  # takes up to 0.5 s
                receive(answer)

    @asynccontextmanager
    async def _send(
        self, url: str, request: HttpRequest, limits: aiohttp.ClientTimeout, trace_parent: str | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The response; its connection is closed unless it was read to the end. Raises `CallFault`."""
        assert self._session is not None
        response: aiohttp.ClientResponse | None = None
        headers = {} if request.keep_alive else {"Connection": "close"}
        if trace_parent is not None:
            headers["traceparent"] = trace_parent
        try:
            response = await self._session.request(
                request.method,
                url.rstrip("/") + request.path,
                data=request.body or None,
                headers=headers,
                timeout=limits,
                allow_redirects=False,
            )
            if response.headers.get("Content-Encoding", "identity") != "identity":
                raise CallFault("failed", "its answer is compressed")
            yield response
        except TimeoutError as error:
            raise CallFault("failed", f"it does not answer ({describe(error, 100)})") from error
        except (aiohttp.ClientError, OSError, ValueError, asyncio.IncompleteReadError) as error:
            raise CallFault("failed", describe(error)) from error
        finally:
            if response is not None:
                response.close()


def _make_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """A socket that notices the loss of the other end, because a call may wait for hours."""
    family, kind, protocol = address[:3]
    connection = socket.socket(family, kind, protocol)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):  # not everywhere by this name
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, LIVENESS_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, LIVENESS_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, LIVENESS_PROBES)
    return connection


async def _read(
    response: aiohttp.ClientResponse,
    limit: int,
    *,
    cut: bool = False,
    heard: Callable[[], None] = lambda: None,
) -> bytes:
    """The body; `heard` is called for each part. Raises `CallFault` beyond `limit` bytes, unless `cut`."""
    body = bytearray()
    while part := await response.content.readany():
        heard()
        body += part
        if len(body) > limit:
            if cut:
                break
            raise CallFault("failed", f"its answer has more than {limit} bytes")
    return bytes(body[:limit])
