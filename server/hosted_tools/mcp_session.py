"""Asynchronous exchanges with an MCP server: connect, list its tools or call one, close.

Servers are not trusted: the bytes that they send are limited while they arrive, and redirects are not
followed. A local command is the operator's own; its process lives for one exchange.
"""

import asyncio
from collections.abc import AsyncGenerator, Hashable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import httpx

from engine.fair_limit import FairLimit
from server.outbound_http.allowed_addresses import AllowedAddresses
from server.outbound_http.guarded_http import ResponseBudget, guarded_client

if TYPE_CHECKING:
    from mcp import ClientSession
    from mcp.types import CallToolResult, Tool

MAX_CONCURRENT_CALLS = 64
MAX_PER_TENANT = 32
MAX_PER_SERVER = 32
MAX_PER_TENANT_AND_SERVER = 16
MAX_PAGES = 16
MAX_LIST_BYTES = 2 * 1024 * 1024
"""Bytes of all responses while a server lists its tools."""
MAX_LIST_LINES = 512
"""Lines of event streams while a server lists its tools; a list is one event of two or three lines."""
CLOSE_SECONDS = 2.0
"""For closing the session, after the exchange's own time."""
_STEP_TIMEOUT = httpx.Timeout(30.0, read=3600.0)
"""Timeouts of single steps; the exchange's own time limit is shorter."""


@dataclass(frozen=True, slots=True)
class Remote:
    """A server over HTTP: the SSE transport if the path ends in /sse, else streamable HTTP."""

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    allowed: AllowedAddresses


@dataclass(frozen=True, slots=True)
class LocalProcess:
    argv: Sequence[str]


ServerLocation = Remote | LocalProcess


@asynccontextmanager
async def _session(
    location: ServerLocation, seconds: float, budget: ResponseBudget
) -> AsyncGenerator["ClientSession"]:
    # Imported here because it takes 20 MB, which a server without MCP need not have.
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.sse import sse_client
    from mcp.client.stdio import stdio_client
    from mcp.client.streamable_http import streamable_http_client

    async with AsyncExitStack() as stack:
        match location:
            case LocalProcess(argv=[command, *arguments]):
                parameters = StdioServerParameters(command=command, args=arguments)
                read, write = await stack.enter_async_context(stdio_client(parameters))
            case Remote() if httpx.URL(location.url).path.rstrip("/").endswith("/sse"):
                factory = partial(_client, location.allowed, seconds, budget)
                streams = sse_client(
                    location.url, headers=dict(location.headers), httpx_client_factory=factory
                )
                read, write = await stack.enter_async_context(streams)
            case Remote():
                client = await stack.enter_async_context(
                    _client(location.allowed, seconds, budget, location.headers)
                )
                read, write, _ = await stack.enter_async_context(
                    streamable_http_client(location.url, http_client=client)
                )
        session = await stack.enter_async_context(ClientSession(read, write))
        await session.initialize()
        yield session


def _client(
    allowed: AllowedAddresses,
    seconds: float,
    budget: ResponseBudget,
    headers: Mapping[str, str] | None = None,
    timeout: httpx.Timeout | None = None,  # noqa: ARG001 - the library passes it
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


async def list_tools(location: ServerLocation, seconds: float) -> list["Tool"]:
    """All tools of the server. Raises TimeoutError after `seconds`."""
    tools: list[Tool] = []
    budget = ResponseBudget(MAX_LIST_BYTES, most_lines=MAX_LIST_LINES)
    async with asyncio.timeout(seconds), _session(location, seconds, budget) as session:
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = await session.list_tools(cursor=cursor)
            tools += page.tools
            cursor = page.nextCursor
            if cursor is None:
                break
    return tools


async def call_tool(
    location: ServerLocation,
    name: str,
    arguments: dict[str, object],
    seconds: float,
    slots: FairLimit,
    tenant: str,
    server: str,
) -> "CallToolResult":
    """The tool's result, of a call that is made once the tenant has a slot for the server.

    Raises NoSlot after `seconds` without one, and TimeoutError `seconds` after the call has begun.
    """
    limits: dict[Hashable, int] = {
        ("server", server): MAX_PER_SERVER,
        ("pair", tenant, server): MAX_PER_TENANT_AND_SERVER,
    }
    async with (
        slots.holding(tenant, seconds, limits),
        asyncio.timeout(seconds),
        _session(location, seconds, ResponseBudget()) as session,
    ):
        return await _call(session, name, arguments)


async def _call(session: "ClientSession", name: str, arguments: dict[str, object]) -> "CallToolResult":
    """`ClientSession.call_tool` without its check against the output schema, for which the library lists the
    tools again and runs the server's regular expressions, which no time limit ends.
    """
    from mcp import types

    parameters = types.CallToolRequestParams(name=name, arguments=arguments)
    request = types.ClientRequest(types.CallToolRequest(params=parameters))
    return await session.send_request(request, types.CallToolResult)


async def cancel_others() -> None:
    """Cancel every other task of this loop; returns when they have ended."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
