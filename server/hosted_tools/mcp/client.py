"""MCP servers: what tools they offer, and calls of them.

Those that the operator has registered are reached by their label, wherever they are; those that a request
names by URL only through the guarded door. An event loop on a thread of its own does the talking: no thread
of anybody else's waits for a server, and calls beyond a share wait for their turn there. What goes wrong with
a server is a result like any other, in words for the model and the client; the cause is in the log.
"""

import asyncio
import hashlib
import json
import logging
import re
import shlex
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import msgspec

from server.errors import ApiError
from server.hosted_tools.mcp import session
from server.hosted_tools.mcp.call_slots import CallSlots, NoSlot
from server.hosted_tools.mcp.registered_servers import COMMAND, SESSION_HEADER, RegisteredServers
from server.hosted_tools.mcp.source_urls import source_urls
from server.hosted_tools.mcp.tool_list_cache import ToolList, ToolListCache, ToolListKey
from server.hosted_tools.tool_specs import McpCredentials, ToolResult
from server.limits.concurrency import SharedLimit
from server.outbound_http.allowed_addresses import (
    AllowedAddresses,
    Refused,
    allow_host_of,
    check_url,
    host_and_port,
    read_url,
)
from server.protocol.responses.hosted_items import ListedTool, McpError
from server.protocol.responses.parts import is_nested_deeper

if TYPE_CHECKING:
    from mcp.types import CallToolResult
    from mcp.types import Tool as OfferedTool

log = logging.getLogger("holdfast.mcp")

T = TypeVar("T")
R = TypeVar("R")
MAX_TOOLS = 128
MAX_OUTPUT_CHARACTERS = 100_000
"""Characters of a tool's output that are kept; what is beyond is left out, and that is said."""
MAX_SCHEMA = 65_536
MAX_TOOLS_BYTES = 1024 * 1024
"""Bytes of all schemas and descriptions of a server."""
MAX_DEPTH = 32
MAX_CALLS = 2048
"""Tool calls under way or waiting for their turn."""
MAX_CALLS_PER_TENANT = 512
LIST_SECONDS = 10.0
STOP_SECONDS = 5.0
_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")


class McpServers:
    """The door to them. Any thread."""

    def __init__(
        self,
        registered: RegisteredServers,
        seconds: float,
        allowed: AllowedAddresses = AllowedAddresses(),  # noqa: B008 - frozen
        *,
        list_seconds: float = LIST_SECONDS,
    ) -> None:
        """`seconds` is how long a call may take, connecting included, and how long it may wait for its turn;
        `list_seconds` is how long a list of tools may take. `allowed` is where requests may send this server
        by a URL of theirs.
        """
        self.registered = registered
        self._seconds = seconds
        self._list_seconds = min(seconds, list_seconds)
        self._allowed = allowed
        self._lock = threading.Lock()
        self._closed = False
        self.loop: asyncio.AbstractEventLoop | None = None
        """Of the thread that talks, once there is one."""
        self._thread: threading.Thread | None = None
        self._pending_calls: dict[UUID, set[Future[Any]]] = {}
        self._listings = ToolListCache()
        self._slots = CallSlots()
        self._calls = SharedLimit("tool calls", total=MAX_CALLS, per_tenant=MAX_CALLS_PER_TENANT)

    def check(self, url: str) -> None:
        """Raises Refused for a URL that requests may not name, as far as can be told before it is visited."""
        check_url(read_url(url), self._allowed)

    def find_tools(self, label: str, access: McpCredentials, tenant: str) -> "ToolList | Future[None]":
        """The tools of a server if they are known, else what is done when they are.

        One that cannot be asked gives an error. Raises TooManyRequests or Overloaded.
        """
        key = ToolListKey(tenant, self._share_key(label, access), label, _digest(access))
        return self._listings.find(key, partial(self.start_listing, label, access, tenant))

    def start_listing(self, label: str, access: McpCredentials, tenant: str) -> "Future[ToolList]":
        """Asks a server for its tools. The future never raises."""
        try:
            place = self._location(label, access, tenant)
        except Exception as error:  # noqa: BLE001 - as in `_as_listed_tool`
            return _resolved(self._failed_list(label, error))
        asked = self._start(session.list_tools(place, self._list_seconds))
        return _then(
            asked, lambda offered: ToolList(usable_tools(label, offered)), partial(self._failed_list, label)
        )

    def _failed_list(self, label: str, error: BaseException) -> ToolList:
        if isinstance(error, TimeoutError):
            return ToolList(
                error=f"The MCP server did not list its tools within {self._list_seconds:g} seconds."
            )
        log.warning("the tools of MCP server %s cannot be listed: %s", label, _cause(error))
        return ToolList(error="The MCP server could not list its tools.")

    def start_call(
        self, label: str, name: str, arguments: str, access: McpCredentials, *, tenant: str, response: UUID
    ) -> "Future[ToolResult]":
        """Calls a tool with JSON text, in its turn. The future never raises; `give_up` ends it early."""
        if access.url is None and label not in self.registered.labels:
            return _resolved(failed_result("This MCP server is not registered here any more."))
        given = _arguments(arguments)
        if given is None:
            return _resolved(failed_result("The arguments are not a JSON object."))
        try:
            place = self._location(label, access, tenant, response)
            self._calls.acquire(tenant)
        except ApiError as full:
            return _resolved(failed_result(str(full)))
        except Exception as error:  # noqa: BLE001 - as in `_uncalled`
            return _resolved(self._failed_call(label, error))
        call = partial(session.call_tool, place, name, given, self._seconds)
        server = self._share_key(label, access)
        asked = self._start(session.in_turn(self._slots, tenant, server, self._seconds, call), response)
        asked.add_done_callback(lambda _: self._calls.release(tenant))
        return _then(asked, _tool_result, partial(self._failed_call, label))

    def _failed_call(self, label: str, error: BaseException) -> ToolResult:
        if isinstance(error, NoSlot):
            return failed_result("Too many calls of this MCP server are under way; try again later.")
        if isinstance(error, TimeoutError):
            return failed_result(f"The tool gave no answer within {self._seconds:g} seconds.")
        log.warning("a call of MCP server %s failed: %s", label, _cause(error))
        return failed_result("The MCP server could not be asked, or its answer could not be read.")

    def cancel_calls(self, response: UUID) -> None:
        """Ends the calls of a response that are under way."""
        with self._lock:
            futures = list(self._pending_calls.get(response, ()))
        for future in futures:
            future.cancel()

    def close(self) -> None:
        """Ends the thread; calls under way fail, and what would begin now never ends."""
        with self._lock:
            self._closed = True
            loop, self.loop = self.loop, None
        if loop is not None and self._thread is not None:
            asyncio.run_coroutine_threadsafe(session.cancel_others(), loop).add_done_callback(
                lambda _done: loop.call_soon_threadsafe(loop.stop)
            )
            self._thread.join(STOP_SECONDS)

    def _location(
        self, label: str, access: McpCredentials, tenant: str, response: UUID | None = None
    ) -> session.ServerLocation:
        """Raises Refused. The operator's servers are told which calls are of one response of a tenant."""
        if access.url is not None:
            self.check(access.url)
            return session.Remote(access.url, access.headers, self._allowed)
        place = self.registered.locations[label]
        if place.startswith(COMMAND):
            return session.Command(shlex.split(place.removeprefix(COMMAND)))
        headers = self.registered.headers(label, access.headers, tenant, response.hex if response else None)
        return session.Remote(place, headers, allow_host_of(place))

    def _share_key(self, label: str, access: McpCredentials) -> str:
        """What a server's share is counted by, whichever label a request gives it."""
        if access.url is None:
            return label
        try:
            host, port = host_and_port(read_url(access.url))
        except Refused:
            return ""
        return f"{host}:{port}"

    def _start(self, exchange: Coroutine[Any, Any, T], response: UUID | None = None) -> "Future[T]":
        with self._lock:
            if self._closed:
                exchange.close()
                return Future()
            future = asyncio.run_coroutine_threadsafe(exchange, self._ensure_loop())
            if response is not None:
                self._pending_calls.setdefault(response, set()).add(future)
        if response is not None:
            future.add_done_callback(partial(self._discard, response))
        return future

    def _discard(self, response: UUID, future: "Future[Any]") -> None:
        with self._lock:
            self._pending_calls[response].discard(future)
            if not self._pending_calls[response]:
                del self._pending_calls[response]

    def _ensure_loop(self) -> asyncio.AbstractEventLoop:
        """The loop, which begins with the first exchange. The lock is held."""
        if self.loop is None:
            self.loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=_run_loop, args=[self.loop], name="mcp", daemon=True)
            self._thread.start()
        return self.loop


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    """The thread. The library is loaded before any exchange's time begins."""
    import mcp  # noqa: F401 - 20 MB, which a server that asks no other for tools need not have

    loop.run_forever()
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def _resolved(value: R) -> "Future[R]":
    future: Future[R] = Future()
    future.set_result(value)
    return future


def _then(asked: "Future[T]", make: Callable[[T], R], explain: Callable[[BaseException], R]) -> "Future[R]":
    """What is made of a result, or of what an exchange raised, whatever that is."""
    made: Future[R] = Future()

    def finish(future: "Future[T]") -> None:
        try:
            value = make(future.result())
        except BaseException as error:  # noqa: BLE001 - whatever a server makes its client raise
            value = explain(error)
        made.set_result(value)

    asked.add_done_callback(finish)
    return made


def _arguments(text: str) -> dict[str, object] | None:
    """A call's arguments; None for what is no JSON object."""
    try:
        given = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return None
    return given if isinstance(given, dict) else None


def _digest(access: McpCredentials) -> bytes:
    """Of what decides which list a server gives. The name of a session at a registered one does not."""
    headers = sorted(
        (name.lower(), value)
        for name, value in access.headers.items()
        if access.url is not None or name.lower() != SESSION_HEADER
    )
    return hashlib.sha256(msgspec.json.encode([access.url, headers])).digest()


def usable_tools(label: str, offered: Sequence["OfferedTool | ListedTool"]) -> list[ListedTool]:
    """The tools that a model can be offered; the others are told in the log."""
    tools: dict[str, ListedTool] = {}
    room = MAX_TOOLS_BYTES
    for tool in map(_as_listed_tool, offered[:MAX_TOOLS]):
        size = _encoded_size(tool)
        if not _NAME.fullmatch(tool.name) or tool.name in tools or size is None or size > room:
            log.warning("MCP server %s offers a tool that cannot be used: %.100r", label, tool.name)
            continue
        room -= size
        tools[tool.name] = tool
    return list(tools.values())


def _as_listed_tool(tool: "OfferedTool | ListedTool") -> ListedTool:
    if isinstance(tool, ListedTool):
        return tool
    said = tool.annotations.model_dump(exclude_none=True) if tool.annotations else {}
    hints = {name: hint for name, hint in said.items() if isinstance(hint, bool)}
    description = (tool.description or "")[:MAX_SCHEMA] or None
    return ListedTool(tool.name, description, tool.inputSchema, hints or None)


def _encoded_size(tool: ListedTool) -> int | None:
    """Of its description and its schema, as JSON; None if they are not what can be kept or used."""
    if is_nested_deeper(tool.input_schema, MAX_DEPTH):
        return None
    try:
        encoded = msgspec.json.encode([tool.description, tool.input_schema])
    except (UnicodeEncodeError, msgspec.MsgspecError, TypeError, ValueError):
        return None
    return None if b"\\u0000" in encoded or len(encoded) > 2 * MAX_SCHEMA else len(encoded)


def _tool_result(result: "CallToolResult") -> ToolResult:
    text = "\n".join(
        part.text if part.type == "text" else f"[{part.type} that cannot be shown here]"
        for part in result.content
    )
    if not text and result.structuredContent is not None:
        text = json.dumps(result.structuredContent, ensure_ascii=False)
    text = text.replace("\0", "").encode(errors="replace").decode()
    if len(text) > MAX_OUTPUT_CHARACTERS:
        omitted = len(text) - MAX_OUTPUT_CHARACTERS
        text = f"{text[:MAX_OUTPUT_CHARACTERS]}\n[{omitted} more characters were left out]"
    if result.isError:
        return ToolResult(
            error=McpError("mcp_tool_execution_error", content=[{"type": "text", "text": text}])
        )
    return ToolResult(output=text, urls=source_urls(result.meta))


def failed_result(message: str) -> ToolResult:
    """Of a call that no tool has answered."""
    return ToolResult(error=McpError("mcp_protocol_error", code=-32000, message=message))


def _cause(error: BaseException) -> str:
    """What went wrong, without what was sent: a group of errors is told by its first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return type(error).__name__
