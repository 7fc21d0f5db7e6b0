"""MCP servers that the operator has registered: what tools they offer, and calls of them.

Synchronous to all others: an event loop on a thread of its own does the talking. What goes wrong with a
server is a result like any other, in words for the model and the client; the cause is in the log.
"""

import asyncio
import json
import logging
import re
import threading
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from mcp.types import CallToolResult, TextContent
from mcp.types import Tool as OfferedTool

from server.errors import ConfigError
from server.runs.hosted import Outcome
from server.tools import session
from server.wire.items import ListedTool, McpError

log = logging.getLogger("holdfast.mcp")

T = TypeVar("T")
MOST_TOOLS = 128
MOST_TEXT = 100_000
"""Characters of a tool's output that are kept; what is beyond is left out, and that is said."""
MOST_SCHEMA = 65_536
_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
_LABEL = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


class Listing(msgspec.Struct, frozen=True):
    """What a server offers, or why it offers nothing."""

    tools: list[ListedTool] = []
    error: str | None = None


def read_servers(text: str | None) -> dict[str, str]:
    """The setting's `label=url,…`. Raises ConfigError."""
    servers: dict[str, str] = {}
    for entry in filter(None, (part.strip() for part in (text or "").split(","))):
        label, _, url = entry.partition("=")
        if not _LABEL.fullmatch(label) or not re.fullmatch(r"https?://[^\s]+", url):
            raise ConfigError(f"mcp-servers must be label=url, with commas between, not {entry!r}.")
        if label in servers:
            raise ConfigError(f"mcp-servers has two servers called {label}.")
        servers[label] = url
    return servers


class McpServers:
    """The door to them. Any thread."""

    def __init__(self, servers: Mapping[str, str], seconds: float) -> None:
        """`seconds` is how long one exchange may take, connecting included."""
        self.labels = frozenset(servers)
        self._servers = dict(servers)
        self._seconds = seconds
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def listing(self, label: str, headers: Mapping[str, str]) -> Listing:
        """The tools of a registered server; one that cannot be asked gives an error."""
        url = self._servers[label]
        try:
            offered = self._run(session.list_tools(url, dict(headers)))
        except TimeoutError:
            return Listing(error=f"The MCP server did not list its tools within {self._seconds:g} seconds.")
        except Exception:
            log.warning("the tools of MCP server %s cannot be listed", label, exc_info=True)
            return Listing(error="The MCP server could not list its tools.")
        return Listing(_usable(label, offered))

    def call(self, label: str, name: str, arguments: str, headers: Mapping[str, str]) -> Outcome:
        """Calls a tool with JSON text."""
        url = self._servers.get(label)
        if url is None:
            return _failure("This MCP server is not registered here any more.")
        try:
            given = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            given = None
        if not isinstance(given, dict):
            return _failure("The arguments are not a JSON object.")
        try:
            result = self._run(session.call_tool(url, dict(headers), name, given))
        except TimeoutError:
            return _failure(f"The tool gave no answer within {self._seconds:g} seconds.")
        except Exception:
            log.warning("a call of MCP server %s failed", label, exc_info=True)
            return _failure("The MCP server could not be asked, or its answer could not be read.")
        return _outcome(result)

    def close(self) -> None:
        """Ends the thread; calls under way fail."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            asyncio.run_coroutine_threadsafe(session.cancel_others(), loop).add_done_callback(
                lambda _done: loop.call_soon_threadsafe(loop.stop)
            )

    def _run(self, exchange: Coroutine[Any, Any, T]) -> T:
        """What the exchange gives. Raises TimeoutError, or what it raises."""
        return asyncio.run_coroutine_threadsafe(
            session.within(exchange, self._seconds), self._started()
        ).result()

    def _started(self) -> asyncio.AbstractEventLoop:
        """The loop, which begins with the first exchange."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="mcp", daemon=True).start()
            return self._loop


def _usable(label: str, offered: Sequence[OfferedTool]) -> list[ListedTool]:
    """The tools that a model can be offered; the others are told in the log."""
    tools: dict[str, ListedTool] = {}
    for tool in offered[:MOST_TOOLS]:
        schema = tool.inputSchema
        if (
            not _NAME.fullmatch(tool.name)
            or tool.name in tools
            or len(msgspec.json.encode(schema)) > MOST_SCHEMA
        ):
            log.warning("MCP server %s offers a tool that cannot be used: %.100r", label, tool.name)
            continue
        hints = tool.annotations.model_dump(exclude_none=True) if tool.annotations else None
        tools[tool.name] = ListedTool(
            tool.name, (tool.description or "")[:MOST_SCHEMA] or None, schema, hints
        )
    return list(tools.values())


def _outcome(result: CallToolResult) -> Outcome:
    text = "\n".join(
        part.text if isinstance(part, TextContent) else f"[{part.type} that cannot be shown here]"
        for part in result.content
    ).replace("\0", "")
    if not text and result.structuredContent is not None:
        text = json.dumps(result.structuredContent, ensure_ascii=False)
    if len(text) > MOST_TEXT:
        text = f"{text[:MOST_TEXT]}\n[{len(text) - MOST_TEXT} more characters were left out]"
    if result.isError:
        return Outcome(error=McpError("mcp_tool_execution_error", content=[{"type": "text", "text": text}]))
    return Outcome(output=text)


def _failure(message: str) -> Outcome:
    return Outcome(error=McpError("mcp_protocol_error", code=-32000, message=message))
