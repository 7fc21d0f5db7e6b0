"""One exchange with an MCP server: connect, ask, leave. The asynchronous half of `mcp.py`.

A server is not trusted: what it sends is bounded as it arrives, and it cannot send us elsewhere. One that is
a process of this machine is the operator's own, and begins and ends with the exchange.
"""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import httpx

from server.tools.address import Allowed
from server.tools.fetch_async import guarded_client

if TYPE_CHECKING:
    from mcp import ClientSession
    from mcp.types import CallToolResult, Tool

T = TypeVar("T")
MOST_PAGES = 16
_PATIENCE = httpx.Timeout(30.0, read=3600.0)
"""Of single steps; the exchange as a whole ends before."""


@dataclass(frozen=True, slots=True)
class Remote:
    """A server that is reached by HTTP: by server-sent events if the path ends in /sse, else streamable."""

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    allowed: Allowed


@dataclass(frozen=True, slots=True)
class Command:
    """A process that speaks over its standard input and output."""

    argv: Sequence[str]


Place = Remote | Command


@asynccontextmanager
async def _session(place: Place) -> AsyncGenerator["ClientSession"]:
    # Here and not above: it is 20 MB, which a server that asks no other for tools need not have.
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.sse import sse_client
    from mcp.client.stdio import stdio_client
    from mcp.client.streamable_http import streamable_http_client

    match place:
        case Command():
            parameters = StdioServerParameters(command=place.argv[0], args=list(place.argv[1:]))
            async with (
                stdio_client(parameters) as (read, write),
                ClientSession(read, write) as session,
            ):
                await session.initialize()
                yield session
        case Remote() if httpx.URL(place.url).path.rstrip("/").endswith("/sse"):
            factory = partial(_client, place.allowed)
            async with (
                sse_client(place.url, headers=dict(place.headers), httpx_client_factory=factory) as (
                    read,
                    write,
                ),
                ClientSession(read, write) as session,
            ):
                await session.initialize()
                yield session
        case Remote():
            async with (
                _client(place.allowed, place.headers) as client,
                streamable_http_client(place.url, http_client=client) as (read, write, _),
                ClientSession(read, write) as session,
            ):
                await session.initialize()
                yield session


def _client(
    allowed: Allowed,
    headers: Mapping[str, str] | None = None,
    timeout: httpx.Timeout | None = None,  # noqa: ARG001 - of the library that calls it
    auth: httpx.Auth | None = None,
) -> httpx.AsyncClient:
    return guarded_client(allowed, headers=headers, timeout=_PATIENCE, auth=auth)


async def list_tools(place: Place) -> list["Tool"]:
    """All tools of the server."""
    tools: list[Tool] = []
    async with _session(place) as session:
        cursor: str | None = None
        for _ in range(MOST_PAGES):
            page = await session.list_tools(cursor=cursor)
            tools += page.tools
            cursor = page.nextCursor
            if cursor is None:
                break
    return tools


async def call_tool(place: Place, name: str, arguments: dict[str, object]) -> "CallToolResult":
    """What the tool answers."""
    async with _session(place) as session:
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
