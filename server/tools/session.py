"""One exchange with an MCP server: connect, ask, leave. The asynchronous half of `mcp.py`.

A server is not trusted: what it sends is bounded as it arrives, redirects are not followed, and the
environment's proxies are not used.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import httpx
from mcp import ClientSession
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult, Tool

T = TypeVar("T")
MOST_BYTES = 8 * 1024 * 1024
"""What a server may send in one answer."""
MOST_PAGES = 16
_SECONDS_BETWEEN_BYTES = 300.0
"""Ended before by the time-out of the exchange as a whole."""


class TooMuch(Exception):
    """A server sent more than it may."""


class _BoundedStream(httpx.AsyncByteStream):
    def __init__(self, stream: httpx.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MOST_BYTES
        async for piece in self._stream:
            left -= len(piece)
            if left < 0:
                raise TooMuch("The server sent too much.")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


class _BoundedTransport(httpx.AsyncHTTPTransport):
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        request.headers["accept-encoding"] = "identity"  # so that the bytes counted are those that are kept
        response = await super().handle_async_request(request)
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _BoundedStream(response.stream)
        return response


def _client(
    headers: dict[str, str] | None = None,
    timeout: httpx.Timeout | None = None,
    auth: httpx.Auth | None = None,
) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        headers=headers,
        timeout=timeout or httpx.Timeout(30.0, read=_SECONDS_BETWEEN_BYTES),
        auth=auth,
        transport=_BoundedTransport(trust_env=False),
        trust_env=False,
        follow_redirects=False,
    )


@asynccontextmanager
async def _session(url: str, headers: dict[str, str]) -> AsyncGenerator[ClientSession]:
    """A session by server-sent events where the address ends in /sse, else by streamable HTTP."""
    if url.rstrip("/").endswith("/sse"):
        async with (
            sse_client(url, headers=headers, httpx_client_factory=_client) as (read, write),
            ClientSession(read, write) as session,
        ):
            await session.initialize()
            yield session
        return
    async with (
        _client(headers) as client,
        streamable_http_client(url, http_client=client) as (read, write, _),
        ClientSession(read, write) as session,
    ):
        await session.initialize()
        yield session


async def list_tools(url: str, headers: dict[str, str]) -> list[Tool]:
    """All tools of the server."""
    tools: list[Tool] = []
    async with _session(url, headers) as session:
        cursor: str | None = None
        for _ in range(MOST_PAGES):
            page = await session.list_tools(cursor=cursor)
            tools += page.tools
            cursor = page.nextCursor
            if cursor is None:
                break
    return tools


async def call_tool(
    url: str, headers: dict[str, str], name: str, arguments: dict[str, object]
) -> CallToolResult:
    async with _session(url, headers) as session:
        return await session.call_tool(name, arguments)


async def within(exchange: Coroutine[Any, Any, T], seconds: float) -> T:
    """What the exchange gives. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        return await exchange


async def cancel_others() -> None:
    """Ends every exchange of this loop; returns when they are over."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
