"""`guarded_client`: an httpx.AsyncClient for MCP with the checks of `fetch.py` and limits on responses."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import httpcore
import httpx

from server.outbound_http.allowed_addresses import AllowedAddresses, Refused, check_addresses, check_url
from server.outbound_http.fetch import trusted_authorities

AsyncLookup = Callable[[str, int], Awaitable[Sequence[str]]]
MAX_BYTES = 8 * 1024 * 1024
"""Of all responses to one client, event streams included."""
MAX_SECONDS = 3600.0
MAX_VALUES = 100_000
"""JSON values, counted by brackets and commas: parsing that many takes about 0.1 s."""
MAX_LINES = 10_000
"""Lines of event streams; an event has at least two."""
BURST_LINES = 32
LINES_PER_SECOND = 100
"""Of one event stream, after its first BURST_LINES. MCP's client takes about 0.15 ms of CPU for an event of
any size, so 32 streams at this rate take a quarter of the interpreter."""
_LINE_END = re.compile(rb"[\r\n]")


class ResponseTooLarge(Exception):
    """A server sent more than the limit."""


class ResponseBudget:
    """The bytes, JSON values and lines that one client may still receive, counted before they are parsed."""

    def __init__(
        self, most_bytes: int = MAX_BYTES, most_values: int = MAX_VALUES, most_lines: int = MAX_LINES
    ) -> None:
        self._bytes = most_bytes
        self._values = most_values
        self._lines = most_lines

    def spend(self, piece: bytes, *, is_events: bool) -> None:
        """Count a chunk. Raises ResponseTooLarge beyond a limit."""
        self._bytes -= len(piece)
        self._values -= piece.count(b",") + piece.count(b"[") + piece.count(b"{")
        if is_events:
            self._lines -= count_lines(piece)
        if min(self._bytes, self._values, self._lines) < 0:
            raise ResponseTooLarge("The server sent too much.")


def count_lines(piece: bytes) -> int:
    r"""An upper bound of its lines: `\r\n` counts as two."""
    return piece.count(b"\n") + piece.count(b"\r")


def split_lines(piece: bytes, most: int) -> Iterator[bytes]:
    """Split a chunk into parts of at most `most` lines, as `count_lines` counts them."""
    begin = lines = 0
    for end in _LINE_END.finditer(piece):
        lines += 1
        if lines == most:
            yield piece[begin : end.end()]
            begin, lines = end.end(), 0
    if begin < len(piece):
        yield piece[begin:]


def guarded_client(
    allowed: AllowedAddresses,
    *,
    headers: Mapping[str, str] | None = None,
    timeout: httpx.Timeout | None = None,
    auth: httpx.Auth | None = None,
    budget: ResponseBudget | None = None,
    seconds: float = MAX_SECONDS,
    lookup: AsyncLookup | None = None,
) -> httpx.AsyncClient:
    """A client that connects to allowed addresses only and follows no redirects.

    Requests raise Refused, ResponseTooLarge, TimeoutError `seconds` after creation, and httpx's own errors.
    """
    return httpx.AsyncClient(
        headers=headers,
        timeout=timeout or httpx.Timeout(30.0),
        auth=auth,
        transport=_CheckedTransport(allowed, budget or ResponseBudget(), seconds, lookup or look_up),
        trust_env=False,
        follow_redirects=False,
    )


async def look_up(host: str, port: int) -> list[str]:
    """The addresses of a host by the system's resolver; empty on failure. An `AsyncLookup`."""
    try:
        answers = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [str(entry[4][0]) for entry in answers]


class _CheckedTransport(httpx.AsyncHTTPTransport):
    def __init__(
        self, allowed: AllowedAddresses, budget: ResponseBudget, seconds: float, lookup: AsyncLookup
    ) -> None:
        context = trusted_authorities()
        super().__init__(verify=context, trust_env=False)
        # httpx has no parameter for the network backend. The parent's pool has no connections yet.
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=context, network_backend=_CheckedNetwork(allowed, lookup)
        )
        self._allowed = allowed
        self._budget = budget
        self._deadline = asyncio.get_running_loop().time() + seconds

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        check_url(request.url, self._allowed)
        request.headers["accept-encoding"] = "identity"
        async with asyncio.timeout_at(self._deadline):
            response = await super().handle_async_request(request)
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            # The limits count bytes as sent, not decompressed.
            await response.aclose()
            raise ResponseTooLarge("The server compressed what it was asked not to.")
        assert isinstance(response.stream, httpx.AsyncByteStream)
        is_events = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        response.stream = _BoundedStream(response.stream, self._budget, self._deadline, is_events=is_events)
        return response


class _BoundedStream(httpx.AsyncByteStream):
    def __init__(
        self, stream: httpx.AsyncByteStream, budget: ResponseBudget, deadline: float, *, is_events: bool
    ) -> None:
        self._stream = stream
        self._budget = budget
        self._deadline = deadline
        self._is_events = is_events
        self._paced_until = 0.0
        """When, on the loop's clock, the lines so far would have come at LINES_PER_SECOND."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        pieces = aiter(self._stream)
        while True:
            async with asyncio.timeout_at(self._deadline):
                piece = await anext(pieces, None)
            if piece is None:
                return
            self._budget.spend(piece, is_events=self._is_events)
            if not self._is_events:
                yield piece
                continue
            for lines in split_lines(piece, BURST_LINES):
                yield lines
                await self._pace(count_lines(lines))

    async def _pace(self, lines: int) -> None:
        """Wait until so many more lines are within LINES_PER_SECOND. TCP slows the server down meanwhile."""
        loop = asyncio.get_running_loop()
        burst = BURST_LINES / LINES_PER_SECOND
        self._paced_until = max(self._paced_until, loop.time() - burst) + lines / LINES_PER_SECOND
        if self._paced_until > loop.time():
            async with asyncio.timeout_at(self._deadline):
                await asyncio.sleep(self._paced_until - loop.time())

    async def aclose(self) -> None:
        await self._stream.aclose()


class _CheckedNetwork(httpcore.AsyncNetworkBackend):
    """Resolves, checks and connects to the checked address, so that DNS rebinding has no effect."""

    def __init__(self, allowed: AllowedAddresses, lookup: AsyncLookup) -> None:
        self._allowed = allowed
        self._lookup = lookup
        self._network = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's name
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        try:
            async with asyncio.timeout(timeout):
                addresses = await self._lookup(host, port)
        except TimeoutError:
            addresses = []
        problem: Exception | None = None
        for address in check_addresses(host, addresses, self._allowed):
            try:
                return await self._network.connect_tcp(
                    str(address), port, timeout, local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                problem = error
        assert problem is not None
        raise problem

    async def connect_unix_socket(self, *_: object, **__: object) -> httpcore.AsyncNetworkStream:
        raise Refused("Sockets of this machine are not visited.")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
