"""One exchange with an MCP server: connect, ask, leave. The asynchronous half of `mcp.py`.

A server is not trusted: what it sends is bounded as it arrives, and it cannot send us elsewhere. One that is
a process of this machine is the operator's own, and begins and ends with the exchange.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import httpx

from server.hosted_tools.mcp.call_slots import CallSlots
from server.outbound_http.allowed_addresses import AllowedAddresses
from server.outbound_http.async_client import ResponseBudget, guarded_client

if TYPE_CHECKING:
    from mcp import ClientSession
    from mcp.types import CallToolResult, Tool

T = TypeVar("T")
MAX_PAGES = 16
MAX_LIST_BYTES = 2 * 1024 * 1024
"""Of all answers while a server lists its tools."""
MAX_LIST_LINES = 512
"""Of streams of events meanwhile; a list is one event of two or three lines."""
CLOSE_SECONDS = 2.0
"""After the time of an exchange: how long the server may take to hear that its session is over."""
_STEP_TIMEOUT = httpx.Timeout(30.0, read=3600.0)
"""Of single steps; the exchange as a whole ends before."""


@dataclass(frozen=True, slots=True)
class Remote:
    """A server that is reached by HTTP: by server-sent events if the path ends in /sse, else streamable."""

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    allowed: AllowedAddresses


@dataclass(frozen=True, slots=True)
class Command:
    """A process that speaks over its standard input and output."""

    argv: Sequence[str]


ServerLocation = Remote | Command


@asynccontextmanager
async def _session(
    place: ServerLocation, seconds: float, budget: ResponseBudget
) -> AsyncGenerator["ClientSession"]:
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
            factory = partial(_client, place.allowed, seconds, budget)
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
                _client(place.allowed, seconds, budget, place.headers) as client,
                streamable_http_client(place.url, http_client=client) as (read, write, _),
                ClientSession(read, write) as session,
            ):
                await session.initialize()
                yield session


def _client(
    allowed: AllowedAddresses,
    seconds: float,
    budget: ResponseBudget,
    headers: Mapping[str, str] | None = None,
    timeout: httpx.Timeout | None = None,  # noqa: ARG001 - of the library that calls it
    auth: httpx.Auth | None = None,
) -> httpx.AsyncClient:
    return guarded_client(
        allowed,
        headers=headers,
        timeout=_STEP_TIMEOUT,
        auth=auth,
        budget=budget,
        seconds=seconds + CLOSE_SECONDS,
    )


async def list_tools(place: ServerLocation, seconds: float) -> list["Tool"]:
    """All tools of the server. Raises TimeoutError after `seconds`."""
    tools: list[Tool] = []
    budget = ResponseBudget(MAX_LIST_BYTES, most_lines=MAX_LIST_LINES)
    async with asyncio.timeout(seconds), _session(place, seconds, budget) as session:
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = await session.list_tools(cursor=cursor)
            tools += page.tools
            cursor = page.nextCursor
            if cursor is None:
                break
    return tools


async def call_tool(
    place: ServerLocation, name: str, arguments: dict[str, object], seconds: float
) -> "CallToolResult":
    """What the tool answers. Raises TimeoutError after `seconds`."""
    async with asyncio.timeout(seconds), _session(place, seconds, ResponseBudget()) as session:
        return await session.call_tool(name, arguments)


async def in_turn(
    slots: CallSlots, tenant: str, server: str, seconds: float, call: Callable[[], Coroutine[Any, Any, T]]
) -> T:
    """What the call gives, once there is a slot for it. Raises NoSlot after `seconds` without one."""
    async with slots.slot(tenant, server, seconds):
        return await call()


async def cancel_others() -> None:
    """Ends every exchange of this loop; returns when they are over."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
