"""MCP servers: what tools they offer, and calls of them.

Those that the operator has registered are reached by their label, wherever they are; those that a request
names by URL only through the guarded door. Synchronous to all others: an event loop on a thread of its own
does the talking. What goes wrong with a server is a result like any other, in words for the model and the
client; the cause is in the log.
"""

import asyncio
import json
import logging
import re
import shlex
import threading
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import msgspec

from server.errors import ConfigError
from server.runs.hosted import Access, Outcome
from server.tools import session
from server.tools.address import Allowed, Refused, check_url, only, read_url
from server.wire.hosted_items import ListedTool, McpError
from server.wire.parts import is_deeper

if TYPE_CHECKING:
    from mcp.types import CallToolResult
    from mcp.types import Tool as OfferedTool

log = logging.getLogger("holdfast.mcp")

T = TypeVar("T")
MOST_TOOLS = 128
MOST_TEXT = 100_000
"""Characters of a tool's output that are kept; what is beyond is left out, and that is said."""
MOST_SCHEMA = 65_536
MOST_LISTED = 1024 * 1024
"""Bytes of all schemas and descriptions of a server."""
MOST_DEPTH = 32
SECONDS_TO_END = 5.0
COMMAND = "stdio:"
SESSION_HEADER = "x-session-id"
"""vLLM's name for it: a server that keeps something between calls knows by it which belong together."""
_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
_LABEL = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


class Listing(msgspec.Struct, frozen=True):
    """What a server offers, or why it offers nothing."""

    tools: list[ListedTool] = []
    error: str | None = None


def read_servers(text: str | None) -> dict[str, str]:
    """The setting's `label=url,…`, or `label=stdio:command`. Raises ConfigError."""
    servers: dict[str, str] = {}
    for entry in filter(None, (part.strip() for part in (text or "").split(","))):
        label, _, place = entry.partition("=")
        if not _LABEL.fullmatch(label) or label in ("functions", "assistant") or not _is_place(place):
            raise ConfigError(
                f"tool-server must be label=url or label=stdio:command, with commas between, not {entry!r}."
            )
        if label in servers:
            raise ConfigError(f"tool-server has two servers called {label}.")
        servers[label] = place
    return servers


def _is_place(place: str) -> bool:
    try:
        if place.startswith(COMMAND):
            return bool(shlex.split(place.removeprefix(COMMAND)))
        only(place)
    except (Refused, ValueError):
        return False
    return True


class McpServers:
    """The door to them. Any thread."""

    def __init__(self, servers: Mapping[str, str], seconds: float, allowed: Allowed = Allowed()) -> None:  # noqa: B008 - frozen
        """`seconds` is how long one exchange may take, connecting included; `allowed` is where requests may
        send this server by a URL of theirs.
        """
        self.labels = frozenset(servers)
        self._servers = dict(servers)
        self._seconds = seconds
        self._allowed = allowed
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._under_way: dict[UUID, set[Future[Any]]] = {}

    def is_command(self, label: str) -> bool:
        """Whether it is a process of this machine."""
        return self._servers.get(label, "").startswith(COMMAND)

    def check(self, url: str) -> None:
        """Raises Refused for a URL that requests may not name, as far as can be told before it is visited."""
        check_url(read_url(url), self._allowed)

    def listing(self, label: str, access: Access) -> Listing:
        """The tools of a server; one that cannot be asked gives an error."""
        try:
            return Listing(usable(label, self._run(session.list_tools(self._place(label, access)))))
        except TimeoutError:
            return Listing(error=f"The MCP server did not list its tools within {self._seconds:g} seconds.")
        except Exception as error:  # noqa: BLE001 - whatever a server makes its client raise
            log.warning("the tools of MCP server %s cannot be listed: %s", label, _cause(error))
            return Listing(error="The MCP server could not list its tools.")

    def call(
        self, label: str, name: str, arguments: str, access: Access, response: UUID | None = None
    ) -> Outcome:
        """Calls a tool with JSON text. `give_up` ends all calls of a response."""
        if access.url is None and label not in self._servers:
            return failure("This MCP server is not registered here any more.")
        try:
            given = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            given = None
        if not isinstance(given, dict):
            return failure("The arguments are not a JSON object.")
        try:
            place = self._place(label, access, response)
            return _outcome(self._run(session.call_tool(place, name, given), response))
        except TimeoutError:
            return failure(f"The tool gave no answer within {self._seconds:g} seconds.")
        except Exception as error:  # noqa: BLE001 - whatever a server makes its client raise
            log.warning("a call of MCP server %s failed: %s", label, _cause(error))
            return failure("The MCP server could not be asked, or its answer could not be read.")

    def give_up(self, response: UUID) -> None:
        """Ends the calls of a response that are under way."""
        with self._lock:
            futures = list(self._under_way.get(response, ()))
        for future in futures:
            future.cancel()

    def close(self) -> None:
        """Ends the thread; calls under way fail."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None and self._thread is not None:
            asyncio.run_coroutine_threadsafe(session.cancel_others(), loop).add_done_callback(
                lambda _done: loop.call_soon_threadsafe(loop.stop)
            )
            self._thread.join(SECONDS_TO_END)

    def _place(self, label: str, access: Access, response: UUID | None = None) -> session.Place:
        """Raises Refused. The operator's servers are told which calls are of one response."""
        if access.url is not None:
            self.check(access.url)
            return session.Remote(access.url, access.headers, self._allowed)
        place = self._servers[label]
        if place.startswith(COMMAND):
            return session.Command(shlex.split(place.removeprefix(COMMAND)))
        headers = {SESSION_HEADER: response.hex} if response is not None else {}
        return session.Remote(place, {**headers, **access.headers}, only(place))

    def _run(self, exchange: Coroutine[Any, Any, T], response: UUID | None = None) -> T:
        """What the exchange gives. Raises TimeoutError, CancelledError, or what it raises."""
        future = asyncio.run_coroutine_threadsafe(session.within(exchange, self._seconds), self._started())
        if response is None:
            return future.result()
        with self._lock:
            self._under_way.setdefault(response, set()).add(future)
        try:
            return future.result()
        finally:
            with self._lock:
                self._under_way[response].discard(future)
                if not self._under_way[response]:
                    del self._under_way[response]

    def _started(self) -> asyncio.AbstractEventLoop:
        """The loop, which begins with the first exchange."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_talk, args=[self._loop], name="mcp", daemon=True)
                self._thread.start()
            return self._loop


def _talk(loop: asyncio.AbstractEventLoop) -> None:
    """The thread."""
    loop.run_forever()
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def usable(label: str, offered: Sequence["OfferedTool | ListedTool"]) -> list[ListedTool]:
    """The tools that a model can be offered; the others are told in the log."""
    tools: dict[str, ListedTool] = {}
    room = MOST_LISTED
    for tool in map(_listed, offered[:MOST_TOOLS]):
        size = _size(tool)
        if not _NAME.fullmatch(tool.name) or tool.name in tools or size is None or size > room:
            log.warning("MCP server %s offers a tool that cannot be used: %.100r", label, tool.name)
            continue
        room -= size
        tools[tool.name] = tool
    return list(tools.values())


def _listed(tool: "OfferedTool | ListedTool") -> ListedTool:
    if isinstance(tool, ListedTool):
        return tool
    said = tool.annotations.model_dump(exclude_none=True) if tool.annotations else {}
    hints = {name: hint for name, hint in said.items() if isinstance(hint, bool)}
    description = (tool.description or "")[:MOST_SCHEMA] or None
    return ListedTool(tool.name, description, tool.inputSchema, hints or None)


def _size(tool: ListedTool) -> int | None:
    """Of its description and its schema, as JSON; None if they are not what can be kept or used."""
    if is_deeper(tool.input_schema, MOST_DEPTH):
        return None
    try:
        encoded = msgspec.json.encode([tool.description, tool.input_schema])
    except (UnicodeEncodeError, msgspec.MsgspecError, TypeError, ValueError):
        return None
    return None if b"\\u0000" in encoded or len(encoded) > 2 * MOST_SCHEMA else len(encoded)


def _outcome(result: "CallToolResult") -> Outcome:
    text = "\n".join(
        part.text if part.type == "text" else f"[{part.type} that cannot be shown here]"
        for part in result.content
    )
    if not text and result.structuredContent is not None:
        text = json.dumps(result.structuredContent, ensure_ascii=False)
    text = text.replace("\0", "").encode(errors="replace").decode()
    if len(text) > MOST_TEXT:
        text = f"{text[:MOST_TEXT]}\n[{len(text) - MOST_TEXT} more characters were left out]"
    if result.isError:
        return Outcome(error=McpError("mcp_tool_execution_error", content=[{"type": "text", "text": text}]))
    return Outcome(output=text)


def failure(message: str) -> Outcome:
    """Of a call that no tool has answered."""
    return Outcome(error=McpError("mcp_protocol_error", code=-32000, message=message))


def _cause(error: BaseException) -> str:
    """What went wrong, without what was sent: a group of errors is told by its first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return type(error).__name__
