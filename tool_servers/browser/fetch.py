"""`fetch`: GETs a web page from allowed addresses, within bounds of time and size.

Names are resolved here and the connection is made to a checked address, so that DNS rebinding has no effect;
each redirect is checked like the first URL. Proxies, cookies and credentials of the environment are not used.
"""

import asyncio
import socket
import ssl
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

import certifi
import httpx

from tool_servers.browser.allowed_web import AllowedWeb, ForbiddenUrl, host_and_port, read_url

Lookup = Callable[[str, int], Sequence[str]]
"""(host, port) → addresses; empty if the host has none."""

SECONDS = 10.0
"""Time of the fetch of a page, redirects included."""
MAX_BYTES = 5 * 1024 * 1024
"""Bytes of a page's body, both compressed and decompressed."""
MAX_REDIRECTS = 3
_HEADERS = {"accept": "*/*", "accept-encoding": "gzip", "user-agent": "Holdfast-Browser"}
_lookups = ThreadPoolExecutor(32, thread_name_prefix="lookup")
"""A lookup that is not answered blocks its thread after its page is given up."""


class PageUnreachable(Exception):
    """A URL could not be fetched. The message is for the model."""


@dataclass(frozen=True, slots=True)
class FetchedPage:
    url: str
    """After redirects."""
    status: int
    media_type: str
    """In lower case, without parameters; empty without a Content-Type."""
    charset: str | None
    body: bytes


def look_up(host: str, port: int) -> list[str]:
    """The addresses of a host by the system's resolver; empty on failure."""
    try:
        entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [str(entry[4][0]) for entry in entries]


def fetch(
    url: str,
    allowed: AllowedWeb,
    *,
    seconds: float = SECONDS,
    max_bytes: int = MAX_BYTES,
    lookup: Lookup = look_up,
) -> FetchedPage:
    """GET a URL; blocks. Raises ForbiddenUrl if it is not allowed, and PageUnreachable."""
    try:
        return asyncio.run(_fetch(read_url(url), CheckedTransport(allowed, lookup), seconds, max_bytes))
    except (httpx.TimeoutException, TimeoutError):
        raise PageUnreachable(f"The page did not arrive within {seconds:g} seconds.") from None
    except (httpx.TransportError, OSError):
        raise PageUnreachable("The page could not be fetched.") from None


class CheckedTransport(httpx.AsyncBaseTransport):
    """A transport that sends requests to checked addresses only. Raises ForbiddenUrl."""

    def __init__(self, allowed: AllowedWeb, lookup: Lookup) -> None:
        self._allowed = allowed
        self._lookup = lookup
        self._connections = httpx.AsyncHTTPTransport(verify=_trusted_authorities(), trust_env=False)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self._allowed.check_url(request.url)
        host, port = host_and_port(request.url)
        resolved = await asyncio.get_running_loop().run_in_executor(_lookups, self._lookup, host, port)
        problem: httpx.TransportError | None = None
        for address in self._allowed.check_addresses(host, resolved):
            to_address = httpx.Request(
                request.method,
                request.url.copy_with(host=str(address)),
                headers=request.headers,
                stream=request.stream,
                extensions={**request.extensions, "sni_hostname": host},
            )
            try:
                return await self._connections.handle_async_request(to_address)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                problem = error
        assert problem is not None
        raise problem

    async def aclose(self) -> None:
        await self._connections.aclose()


@cache
def _trusted_authorities() -> ssl.SSLContext:
    """A TLS context with the system's certificate authorities and certifi's."""
    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    return context


async def _fetch(url: httpx.URL, transport: CheckedTransport, seconds: float, max_bytes: int) -> FetchedPage:
    extensions = {"timeout": httpx.Timeout(seconds).as_dict()}
    async with asyncio.timeout(seconds), transport:
        for _ in range(MAX_REDIRECTS + 1):
            request = httpx.Request("GET", url, headers=_HEADERS, extensions=extensions)
            response = await transport.handle_async_request(request)
            try:
                if response.has_redirect_location:
                    url = _redirected(url, response.headers["location"])
                    continue
                body = await _read_body(response, max_bytes)
            finally:
                await response.aclose()
            media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            return FetchedPage(str(url), response.status_code, media_type, response.charset_encoding, body)
    raise PageUnreachable("The page redirects too often.")


def _redirected(url: httpx.URL, location: str) -> httpx.URL:
    try:
        return read_url(str(url.join(location)))
    except (httpx.InvalidURL, ValueError):
        raise ForbiddenUrl("The page redirects to an invalid URL.") from None


async def _read_body(response: httpx.Response, max_bytes: int) -> bytes:
    """The decompressed body. Raises PageUnreachable if it is too large or badly compressed."""
    encoding = response.headers.get("content-encoding", "").lower()
    if encoding not in ("", "identity", "gzip", "x-gzip"):
        raise PageUnreachable("The page has a compression that was not requested.")
    inflator = zlib.decompressobj(wbits=31) if "gzip" in encoding else None
    body = bytearray()
    received = 0
    async for piece in response.aiter_raw():
        received += len(piece)
        try:
            body += piece if inflator is None else inflator.decompress(piece, max_bytes + 1 - len(body))
        except zlib.error:
            raise PageUnreachable("The page is not compressed as it says.") from None
        if max(received, len(body)) > max_bytes:
            raise PageUnreachable(f"The page is larger than {max_bytes} bytes.")
        if inflator is not None and inflator.eof:
            break
    return bytes(body)
