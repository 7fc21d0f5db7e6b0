"""The one door to the web for MCP's client, which is asynchronous: the same checks, as an httpx client."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import httpcore
import httpx

from server.tools.address import Allowed, Refused, check_addresses, check_url
from server.tools.fetch import trusted_authorities

AsyncLookup = Callable[[str, int], Awaitable[Sequence[str]]]
MOST_BYTES = 8 * 1024 * 1024
"""Of one answer; a stream of events is one."""


class TooMuch(Exception):
    """A server sent more than it may."""


def guarded_client(
    allowed: Allowed,
    *,
    headers: Mapping[str, str] | None = None,
    timeout: httpx.Timeout | None = None,
    auth: httpx.Auth | None = None,
    most_bytes: int = MOST_BYTES,
    lookup: AsyncLookup | None = None,
) -> httpx.AsyncClient:
    """A client that visits what is allowed and nothing else, also when a server redirects it.

    Its requests raise Refused, TooMuch, and httpx's own. How long an exchange may take in all is for the
    caller to say: a stream of events has no end of its own.
    """
    return httpx.AsyncClient(
        headers=headers,
        timeout=timeout or httpx.Timeout(30.0),
        auth=auth,
        transport=_CheckedTransport(allowed, most_bytes, lookup or look_up),
        trust_env=False,
        follow_redirects=False,
    )


async def look_up(host: str, port: int) -> list[str]:
    """The addresses of a host, as this machine resolves it. An `AsyncLookup`."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [str(entry[4][0]) for entry in found]


class _CheckedTransport(httpx.AsyncHTTPTransport):
    def __init__(self, allowed: Allowed, most_bytes: int, lookup: AsyncLookup) -> None:
        context = trusted_authorities()
        super().__init__(verify=context, trust_env=False)
        # The parent has no parameter for it. Its own pool has opened nothing yet.
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=context, network_backend=_CheckedNetwork(allowed, lookup)
        )
        self._allowed = allowed
        self._most_bytes = most_bytes

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        check_url(request.url, self._allowed)
        request.headers["accept-encoding"] = "identity"
        response = await super().handle_async_request(request)
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            # The bytes that are counted would not be those that are kept.
            await response.aclose()
            raise TooMuch("The server compressed what it was asked not to.")
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _BoundedStream(response.stream, self._most_bytes)
        return response


class _BoundedStream(httpx.AsyncByteStream):
    def __init__(self, stream: httpx.AsyncByteStream, most_bytes: int) -> None:
        self._stream = stream
        self._left = most_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._stream:
            self._left -= len(piece)
            if self._left < 0:
                raise TooMuch("The server sent too much.")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


class _CheckedNetwork(httpcore.AsyncNetworkBackend):
    """Connects to addresses that were checked, so that a name cannot lead elsewhere after the check."""

    def __init__(self, allowed: Allowed, lookup: AsyncLookup) -> None:
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
                found = await self._lookup(host, port)
        except TimeoutError:
            found = []
        problem: Exception | None = None
        for address in check_addresses(host, found, self._allowed):
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
