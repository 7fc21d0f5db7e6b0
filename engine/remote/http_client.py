"""`EngineClient`: sends calls to engine servers with aiohttp and reads their answers, on the event loop.

All that a server sends has a bound: in bytes, for an event and for an answer that is not streamed, and in
seconds of silence (`silence_timeout`). Redirects and compressed bodies are refused: no engine sends them.
"""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import aiohttp

from engine.remote.answer_reader import AnswerReader
from engine.remote.engine_protocol import AnswerChunk, CallFault, EngineProtocol, GenerateCall, HttpRequest
from engine.remote.router import EngineServer
from engine.remote.server_answers import status_fault
from engine.remote.silence_timeout import SilenceTimeout
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
ERROR_BYTES = 16 * 2**10
"""The most that is read of an error's body."""
BYTES_PER_LOGPROB = 160
"""Bound for prompt logprobs in an answer that is not streamed; vLLM takes about 80."""


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
        """The timeout of each call that runs."""
        self._readers: set[AnswerReader] = set()
        """The reader of each answer that arrives."""

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
        self,
        server: EngineServer,
        call: GenerateCall,
        receive: Callable[[AnswerChunk], bool],
    ) -> None:
        """Makes the call and gives the parts of its answer to `receive`, until that returns False.

        `server` has been probed. Leaving the call early closes the connection. Raises `CallFault`, and what
        `receive` raises.
        """
        assert server.description is not None
        url, model = server.url, server.description.model
        async with self._watched(server) as silence:
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
                    await self._read_events(response, call, receive, silence)
                    return
                count = 2 + (call.request.prompt_logprobs or 0)
                limit = PROBE_BYTES + len(call.tokens) * count * BYTES_PER_LOGPROB
                body = await _read(response, limit, heard=silence.hear)
                answer = await asyncio.to_thread(self._protocol.read_answer, body, call)  # takes up to 0.5 s
                receive(answer)

    async def _read_events(
        self,
        response: aiohttp.ClientResponse,
        call: GenerateCall,
        receive: Callable[[AnswerChunk], bool],
        silence: SilenceTimeout,
    ) -> None:
        reader = AnswerReader(response, partial(self._protocol.read_event, call=call), receive, silence)
        reader.paused = self._paused
        self._readers.add(reader)
        try:
            await reader.read()
        finally:
            self._readers.remove(reader)

    @asynccontextmanager
    async def _watched(self, server: EngineServer) -> AsyncIterator[SilenceTimeout]:
        """Has pauses and silence concern a call from its start."""
        silence = SilenceTimeout(server, self._silence_timeout, paused=self._paused)
        self._silences.add(silence)
        try:
            async with silence.watching():
                yield silence
        finally:
            self._silences.remove(silence)

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
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):  # not everywhere by this name
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, LIVENESS_SECONDS)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, LIVENESS_SECONDS)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, LIVENESS_PROBES)
    return made


async def _read(
    response: aiohttp.ClientResponse,
    limit: int,
    *,
    cut: bool = False,
    heard: Callable[[], None] = lambda: None,
) -> bytes:
    """The body, of at most `limit` bytes. Raises `CallFault` for a longer one, unless `cut`.

    `heard` is called for each part of it.
    """
    body = bytearray()
    while part := await response.content.readany():
        heard()
        body += part
        if len(body) > limit:
            if cut:
                break
            raise CallFault("failed", f"its answer has more than {limit} bytes")
    return bytes(body[:limit])
