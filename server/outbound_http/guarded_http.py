"""Outgoing HTTP behind the SSRF guard: `fetch`, `post`, and `guarded_client` for MCP; bounded time and size.
Connections are made to checked addresses, so DNS rebinding has no effect, and redirects are checked. Proxies,
cookies and credentials of the environment are not used.
"""

import asyncio
import re
import socket
import ssl
import threading
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache
from typing import Any

import certifi
import httpcore
import httpx

from server.outbound_http.allowed_addresses import (
    AllowedAddresses,
    Refused,
    check_addresses,
    check_url,
    host_and_port,
    read_url,
)
from server.version import VERSION

Lookup = Callable[[str, int], Awaitable[Sequence[str]]]
"""(host, port) → addresses; empty if the host has none."""

MAX_BYTES = 8 * 1024 * 1024
"""Bytes of all responses to one guarded client, event streams included."""
MAX_SECONDS = 3600.0
MAX_VALUES = 100_000
"""JSON values, counted by brackets and commas: parsing that many takes about 0.1 s."""
MAX_LINES = 10_000
"""Lines of event streams; an event has at least two."""
BURST_LINES = 32
LINES_PER_SECOND = 100
"""Rate of one event stream after its first BURST_LINES. MCP's client takes about 0.15 ms of CPU for an event
of any size, so 32 streams at this rate take a quarter of the interpreter."""
_LINE_END = re.compile(rb"[\r\n]")
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_STEP_SECONDS = 10.0
"""Time of a page's lookup, of connecting, and of each read and write."""
_OVERTIME_S = 0.1
"""How much later than its steps a whole fetch is ended: the error of a step says more."""
_CHUNK_BYTES = 65536
_lookups = threading.BoundedSemaphore(32)
"""A lookup that is not answered blocks its thread, so the number of threads is limited."""


async def look_up(host: str, port: int) -> list[str]:
    """The addresses of a host by the system's resolver; empty on failure. A `Lookup`."""
    while not _lookups.acquire(blocking=False):  # noqa: ASYNC110 - other event loops release it, too
        await asyncio.sleep(0.01)
    answer: Future[list[str]] = Future()
    answer.set_running_or_notify_cancel()  # from now on a cancelled caller leaves it alone
    try:
        threading.Thread(target=_resolve, args=[host, port, answer], name="lookup", daemon=True).start()
    except RuntimeError:  # there is no thread left
        _lookups.release()
        return []
    return await asyncio.wrap_future(answer)


def _resolve(host: str, port: int, answer: "Future[list[str]]") -> None:
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        addresses = []
    _lookups.release()
    answer.set_result([str(entry[4][0]) for entry in addresses])


@cache
def trusted_authorities() -> ssl.SSLContext:
    """A TLS context with the system's certificate authorities and certifi's."""
    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    return context


class CheckedNetwork(httpcore.AsyncNetworkBackend):
    """Resolves, checks and connects to the checked address, so that DNS rebinding has no effect."""

    def __init__(self, allowed: AllowedAddresses, lookup: Lookup) -> None:
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


def _pool(allowed: AllowedAddresses, lookup: Lookup) -> httpcore.AsyncConnectionPool:
    network = CheckedNetwork(allowed, lookup)
    return httpcore.AsyncConnectionPool(ssl_context=trusted_authorities(), network_backend=network)


class Unreachable(Exception):
    """A URL could not be fetched. The message is for the client."""


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Limits of one fetch, redirects included."""

    size: int = 5 * 1024 * 1024
    """Bytes of the body, both compressed and decompressed."""
    seconds: float = 10.0
    redirects: int = 3


@dataclass(frozen=True, slots=True)
class FetchResult:
    url: str
    """After redirects."""
    status: int
    media_type: str
    """In lower case, without parameters; empty without a Content-Type."""
    body: bytes


def fetch(
    url: str, allowed: AllowedAddresses, bounds: FetchLimits | None = None, lookup: Lookup = look_up
) -> FetchResult:
    """GET a URL; blocks. Raises Refused if it is not allowed, and Unreachable."""
    bounds = bounds or FetchLimits()
    try:
        return asyncio.run(_fetch(read_url(url), allowed, bounds, lookup))
    except (httpcore.TimeoutException, TimeoutError):
        raise Unreachable(f"The page did not arrive within {bounds.seconds:g} seconds.") from None
    except (httpcore.NetworkError, httpcore.ProtocolError, OSError):
        raise Unreachable("The page could not be fetched.") from None


async def _fetch(
    here: httpx.URL, allowed: AllowedAddresses, bounds: FetchLimits, lookup: Lookup
) -> FetchResult:
    async with asyncio.timeout(bounds.seconds + _OVERTIME_S), _pool(allowed, lookup) as pool:
        for _ in range(bounds.redirects + 1):
            check_url(here, allowed)
            answer = await _get(pool, here, bounds)
            if isinstance(answer, FetchResult):
                return answer
            here = _redirected(here, answer)
    raise Unreachable("The page redirects too often.")


async def _get(pool: httpcore.AsyncConnectionPool, url: httpx.URL, bounds: FetchLimits) -> FetchResult | str:
    """The response, or the location of a redirect."""
    headers = [
        (b"host", url.netloc),
        (b"accept", b"*/*"),
        (b"accept-encoding", b"gzip"),
        (b"user-agent", f"Holdfast/{VERSION}".encode("ascii")),
    ]
    timeouts = dict.fromkeys(("connect", "read", "write", "pool"), min(_STEP_SECONDS, bounds.seconds))
    async with pool.stream(
        "GET", _target(url), headers=headers, extensions={"timeout": timeouts}
    ) as response:
        received = httpx.Headers(response.headers)
        if response.status in _REDIRECTS and "location" in received:
            return received["location"]
        encoding = received.get("content-encoding", "").lower()
        body = await _read_body(response.aiter_stream(), encoding, bounds.size)
        media_type = received.get("content-type", "").partition(";")[0].strip().lower()
        return FetchResult(str(url), response.status, media_type, body)


def _target(url: httpx.URL) -> httpcore.URL:
    host, port = host_and_port(url)
    return httpcore.URL(scheme=url.raw_scheme, host=host.encode("ascii"), port=port, target=url.raw_path)


def _redirected(here: httpx.URL, location: str) -> httpx.URL:
    try:
        return read_url(str(here.join(location)))
    except (httpx.InvalidURL, ValueError):
        raise Refused("The page redirects to an invalid URL.") from None


async def _read_body(pieces: AsyncIterator[bytes], encoding: str, size: int) -> bytes:
    """The decompressed body. Raises Unreachable if it is too large or badly compressed."""
    if encoding not in ("", "identity", "gzip", "x-gzip"):
        raise Unreachable("The page has a compression that was not requested.")
    inflator = zlib.decompressobj(wbits=31) if "gzip" in encoding else None
    body = bytearray()
    sent = 0
    try:
        async for piece in pieces:
            sent += len(piece)
            for part in [piece] if inflator is None else _inflated(inflator, piece):
                body += part
                if len(body) > size:
                    raise Unreachable(f"The page is larger than {size} bytes.")
            if inflator is not None and (inflator.eof or sent > size):
                break
    except zlib.error:
        raise Unreachable("The page is not compressed as it says.") from None
    return bytes(body)


def _inflated(inflator: Any, piece: bytes) -> Iterator[bytes]:
    """A piece decompressed in parts: one byte may decompress to a thousand."""
    while piece:
        yield inflator.decompress(piece, _CHUNK_BYTES)
        piece = inflator.unconsumed_tail


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
    lookup: Lookup = look_up,
) -> httpx.AsyncClient:
    """A client that connects to allowed addresses only and follows no redirects.

    Requests raise Refused, ResponseTooLarge, TimeoutError `seconds` after creation, and httpx's own errors.
    """
    return httpx.AsyncClient(
        headers=headers,
        timeout=timeout or httpx.Timeout(30.0),
        auth=auth,
        transport=_CheckedTransport(allowed, budget or ResponseBudget(), seconds, lookup),
        trust_env=False,
        follow_redirects=False,
    )


class _CheckedTransport(httpx.AsyncHTTPTransport):
    def __init__(
        self, allowed: AllowedAddresses, budget: ResponseBudget, seconds: float, lookup: Lookup
    ) -> None:
        super().__init__(verify=trusted_authorities(), trust_env=False)
        # httpx has no parameter for the network backend. The parent's pool has no connections yet.
        self._pool = _pool(allowed, lookup)
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
            raise ResponseTooLarge("The server compressed its response although the request ruled that out.")
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


@dataclass(frozen=True, slots=True)
class PostResult:
    status: int
    retry_after: str | None


def post(
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    allowed: AllowedAddresses,
    seconds: float,
    lookup: Lookup = look_up,
) -> PostResult:
    """POSTs to a URL on a connection of its own; blocks for at most `seconds`.

    Of the answer the head alone is read, which httpcore bounds at 100 KiB, so a body of any size costs
    nothing. Redirects are not followed.

    Raises Refused if the URL or an address of its host is not allowed, and Unreachable.
    """
    try:
        return asyncio.run(_post(read_url(url), headers, body, allowed, seconds, lookup))
    except (httpcore.TimeoutException, TimeoutError):
        raise Unreachable(f"There was no answer within {seconds:g} seconds.") from None
    except httpcore.ConnectError:
        raise Unreachable("It cannot be connected to, or has no valid certificate.") from None
    except (httpcore.NetworkError, OSError):
        raise Unreachable("The connection was lost before an answer.") from None
    except httpcore.ProtocolError:
        raise Unreachable("The answer is not HTTP.") from None


async def _post(
    url: httpx.URL,
    headers: Mapping[str, str],
    body: bytes,
    allowed: AllowedAddresses,
    seconds: float,
    lookup: Lookup,
) -> PostResult:
    check_url(url, allowed)
    lines = [(b"host", url.netloc), (b"content-length", str(len(body)).encode())]
    lines += [(name.encode("ascii"), value.encode("ascii")) for name, value in headers.items()]
    lines.append((b"connection", b"close"))
    timeouts = dict.fromkeys(("connect", "read", "write", "pool"), seconds)
    async with (
        asyncio.timeout(seconds),
        _pool(allowed, lookup) as pool,
        pool.stream(
            "POST", _target(url), headers=lines, content=body, extensions={"timeout": timeouts}
        ) as answer,
    ):
        received = httpx.Headers(answer.headers)
        return PostResult(answer.status, received.get("retry-after"))
