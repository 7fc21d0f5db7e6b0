"""`fetch`: a synchronous GET of an allowed URL, with limits on time, size and redirects.

Connections are made to checked addresses, so DNS rebinding has no effect; each redirect is checked like the
first URL. Proxies, cookies and credentials of the environment are not used. The limits hold for slow and for
compressed responses, too. `async_client.py` has the same checks for MCP's client.
"""

import socket
import ssl
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from queue import Empty, SimpleQueue
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

Lookup = Callable[[str, int, float], Sequence[str]]
"""(host, port, time limit) → addresses; empty if the host has none or the time is over."""

REDIRECTS = frozenset({301, 302, 303, 307, 308})
_STEP_SECONDS = 10.0
_CHUNK_BYTES = 65536
_lookups = threading.BoundedSemaphore(32)
"""A lookup that is not answered blocks its thread, so the number of threads is limited."""


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
    """The response of a fetch."""

    url: str
    """After redirects."""
    status: int
    media_type: str
    """In lower case, without parameters; empty without a Content-Type."""
    charset: str | None
    body: bytes


def fetch(
    url: str,
    allowed: AllowedAddresses,
    bounds: FetchLimits | None = None,
    *,
    accept: str = "*/*",
    lookup: Lookup | None = None,
) -> FetchResult:
    """GET a URL. Raises Refused if it is not allowed, and Unreachable."""
    bounds = bounds or FetchLimits()
    deadline = time.monotonic() + bounds.seconds
    here = read_url(url)
    network = _CheckedNetwork(allowed, deadline, lookup or look_up)
    with httpcore.ConnectionPool(ssl_context=trusted_authorities(), network_backend=network) as pool:
        for _ in range(bounds.redirects + 1):
            check_url(here, allowed)
            try:
                answer = _get(pool, here, accept, bounds.size)
            except (httpcore.TimeoutException, TimeoutError):
                raise Unreachable(f"The page did not arrive within {bounds.seconds:g} seconds.") from None
            except (httpcore.NetworkError, httpcore.ProtocolError, OSError):
                raise Unreachable("The page could not be fetched.") from None
            if isinstance(answer, FetchResult):
                return answer
            here = _redirected(here, answer)
    raise Unreachable("The page redirects too often.")


def _get(pool: httpcore.ConnectionPool, url: httpx.URL, accept: str, size: int) -> FetchResult | str:
    """The response, or the location of a redirect."""
    headers = [
        (b"host", url.netloc),
        (b"accept", accept.encode("ascii")),
        (b"accept-encoding", b"gzip"),
        (b"user-agent", f"Holdfast/{VERSION}".encode("ascii")),
    ]
    host, port = host_and_port(url)
    target = httpcore.URL(scheme=url.raw_scheme, host=host.encode("ascii"), port=port, target=url.raw_path)
    timeouts = dict.fromkeys(("connect", "read", "write", "pool"), _STEP_SECONDS)
    with pool.stream("GET", target, headers=headers, extensions={"timeout": timeouts}) as response:
        received = httpx.Headers(response.headers)
        if response.status in REDIRECTS and "location" in received:
            return received["location"]
        body = _read_body(response.iter_stream(), received.get("content-encoding", "").lower(), size)
        media_type, parameters = _content_type(received.get("content-type", ""))
        return FetchResult(str(url), response.status, media_type, parameters.get("charset"), body)


def _redirected(here: httpx.URL, location: str) -> httpx.URL:
    try:
        return read_url(str(here.join(location)))
    except (httpx.InvalidURL, ValueError):
        raise Refused("The page redirects to what is no URL.") from None


def _read_body(pieces: Iterable[bytes], encoding: str, size: int) -> bytes:
    """The decompressed body. Raises Unreachable if it is too large or badly compressed."""
    body = bytearray()
    for piece in _decompressed(pieces, encoding, size):
        body += piece
        if len(body) > size:
            raise Unreachable(f"The page is larger than {size} bytes.")
    return bytes(body)


def _decompressed(pieces: Iterable[bytes], encoding: str, size: int) -> Iterator[bytes]:
    if encoding in ("", "identity"):
        yield from pieces
        return
    if encoding not in ("gzip", "x-gzip"):
        raise Unreachable("The page is compressed in a way that was not asked for.")
    inflator = zlib.decompressobj(wbits=31)
    sent = 0
    try:
        for piece in pieces:
            sent += len(piece)
            left = piece
            while left:  # one byte may decompress to a thousand
                yield inflator.decompress(left, _CHUNK_BYTES)
                left = inflator.unconsumed_tail
            if inflator.eof or sent > size:
                return
    except zlib.error:
        raise Unreachable("The page is not compressed as it says.") from None


def _content_type(text: str) -> tuple[str, dict[str, str]]:
    media_type, *parts = (part.strip() for part in text.lower().split(";"))
    pairs = (part.partition("=") for part in parts)
    return media_type, {name.strip(): value.strip("\"' ") for name, _, value in pairs}


def look_up(host: str, port: int, seconds: float) -> list[str]:
    """The addresses of a host by the system's resolver. A `Lookup`."""
    result: SimpleQueue[list[str]] = SimpleQueue()

    def ask() -> None:
        try:
            answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            answers = []
        result.put([str(answer[4][0]) for answer in answers])
        _lookups.release()

    if not _lookups.acquire(timeout=seconds):
        return []
    threading.Thread(target=ask, name="lookup", daemon=True).start()
    try:
        return result.get(timeout=seconds)
    except Empty:
        return []


@cache
def trusted_authorities() -> ssl.SSLContext:
    """A TLS context with the system's certificate authorities and certifi's."""
    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    return context


def _remaining(deadline: float, timeout: float | None) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise httpcore.ReadTimeout
    return left if timeout is None else min(left, timeout)


class _CheckedNetwork(httpcore.NetworkBackend):
    """Resolves, checks and connects to the checked address, before a deadline."""

    def __init__(self, allowed: AllowedAddresses, deadline: float, lookup: Lookup) -> None:
        self._allowed = allowed
        self._deadline = deadline
        self._lookup = lookup
        self._network = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        addresses = self._lookup(host, port, _remaining(self._deadline, timeout))
        problem: Exception | None = None
        for address in check_addresses(host, addresses, self._allowed):
            left = _remaining(self._deadline, timeout)
            try:
                stream = self._network.connect_tcp(str(address), port, left, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                problem = error
            else:
                return _DeadlineStream(stream, self._deadline)
        assert problem is not None
        raise problem

    def connect_unix_socket(self, *_: object, **__: object) -> httpcore.NetworkStream:
        raise Refused("Sockets of this machine are not visited.")


class _DeadlineStream(httpcore.NetworkStream):
    """A connection with a deadline for all of its reads and writes together."""

    def __init__(self, stream: httpcore.NetworkStream, deadline: float) -> None:
        self._stream = stream
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _remaining(self._deadline, timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, _remaining(self._deadline, timeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        stream = self._stream.start_tls(ssl_context, server_hostname, _remaining(self._deadline, timeout))
        return _DeadlineStream(stream, self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
