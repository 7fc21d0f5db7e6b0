"""`EngineClient`: sends calls to engine servers with aiohttp and reads their answers, on the event loop.

All that a server sends has a bound: in bytes, for an event and for an answer that is not streamed, and in
seconds of silence. Redirects and compressed bodies are refused: neither is what an engine sends.
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from engine.remote.interface import (
    Chunk,
    EngineFault,
    EngineProtocol,
    GenerateCall,
    HttpRequest,
    split_events,
)
from engine.request import describe

CONNECT_SECONDS = 5.0
PROBE_SECONDS = 5.0
"""For the whole answer to a probe, an abort, or a question for the load."""
PROBE_BYTES = 4 * 2**20
"""/metrics of a server with many adapters has some hundred KiB."""
EVENT_BYTES = 4 * 2**20
"""One event, and all comments and empty events before it; a token with 20 logprobs has 2 KiB."""
ERROR_BYTES = 16 * 2**10
"""Of an error's body, what is read."""
BYTES_PER_LOGPROB = 160
"""Of prompt logprobs, in an answer that is not streamed; vLLM takes about 80."""
TOKENS_PER_CHUNK = 4096
"""More tokens in one event than this are no answer of an engine."""


class EngineClient:
    """Calls of one kind of server. `open` before use, on the event loop."""

    def __init__(
        self,
        protocol: EngineProtocol,
        api_key: str | None,
        ca_file: Path | None,
        silence_seconds: float,
        trace_parent_of: Callable[[str], str | None] = lambda _request_id: None,
    ) -> None:
        """`silence_seconds` is the longest wait between two parts of an answer."""
        self._protocol = protocol
        self._trace_parent_of = trace_parent_of
        self._headers = {"Accept-Encoding": "identity", "Content-Type": "application/json"}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._tls = ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
        self._silence_seconds = silence_seconds
        self._session: aiohttp.ClientSession | None = None
        self._streams: dict[str, set[aiohttp.ClientResponse]] = {}
        """By URL: the answers that are being read."""

    def open(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=self._tls, keepalive_timeout=30.0),
            headers=self._headers,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def drop(self, url: str) -> None:
        """Closes the connections of calls to this server; reading them raises `EngineFault`."""
        for response in tuple(self._streams.get(url, ())):
            response.close()

    async def fetch(self, url: str, request: HttpRequest) -> tuple[int, bytes]:
        """Status and body of a small answer. Raises `EngineFault`."""
        timeout = aiohttp.ClientTimeout(total=PROBE_SECONDS, sock_connect=CONNECT_SECONDS)
        async with self._send(url, request, timeout) as response:
            return response.status, await _read(response, PROBE_BYTES)

    async def generate(self, url: str, model: str, call: GenerateCall) -> AsyncGenerator[Chunk]:
        """The parts of the call's answer; leaving the iteration early closes the connection.

        Raises `EngineFault`.
        """
        request = self._protocol.generate_request(call, model)
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_SECONDS, sock_read=self._silence_seconds
        )
        trace_parent = self._trace_parent_of(call.request.request_id)
        async with self._send(url, request, timeout, trace_parent) as response:
            if response.status != 200:
                body = await _read(response, ERROR_BYTES, cut=True)
                raise self._protocol.read_error(response.status, body)
            if not request.streamed:
                count = 2 + (call.request.prompt_logprobs or 0)
                limit = PROBE_BYTES + len(call.tokens) * count * BYTES_PER_LOGPROB
                yield self._protocol.read_answer(await _read(response, limit), call)
                return
            streams = self._streams.setdefault(url, set())
            streams.add(response)
            try:
                async for chunk in self._events(response, call):
                    yield chunk
            finally:
                streams.discard(response)
                if not streams:
                    self._streams.pop(url, None)

    async def _events(self, response: aiohttp.ClientResponse, call: GenerateCall) -> AsyncIterator[Chunk]:
        buffer = bytearray()
        read_event = self._protocol.read_event
        unread = 0
        while part := await response.content.readany():
            buffer += part
            unread += len(part)
            for data in split_events(buffer):
                chunk = read_event(data, call)
                if chunk is not None:
                    if len(chunk.token_ids) > TOKENS_PER_CHUNK:
                        raise EngineFault("failed", f"one event has {len(chunk.token_ids)} tokens")
                    unread = len(buffer)
                    yield chunk
            if unread > EVENT_BYTES:
                raise EngineFault("failed", f"it sent more than {EVENT_BYTES} bytes without a token")

    @asynccontextmanager
    async def _send(
        self, url: str, request: HttpRequest, limits: aiohttp.ClientTimeout, trace_parent: str | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The response; its connection is closed unless it was read to the end. Raises `EngineFault`."""
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
                raise EngineFault("failed", "its answer is compressed")
            yield response
        except TimeoutError as error:
            raise EngineFault("failed", f"it does not answer ({describe(error, 100)})") from error
        except (aiohttp.ClientError, OSError, ValueError, asyncio.IncompleteReadError) as error:
            raise EngineFault("failed", describe(error)) from error
        finally:
            if response is not None:
                response.close()


async def _read(response: aiohttp.ClientResponse, limit: int, *, cut: bool = False) -> bytes:
    """The body, of at most `limit` bytes. Raises `EngineFault` for a longer one, unless `cut`."""
    body = bytearray()
    while part := await response.content.readany():
        body += part
        if len(body) > limit:
            if cut:
                break
            raise EngineFault("failed", f"its answer has more than {limit} bytes")
    return bytes(body[:limit])
