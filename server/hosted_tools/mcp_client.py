"""McpServers, the MCP client: lists of tools and tool calls as futures, made on a thread with an event loop,
so that no other thread waits for a server. Registered servers are reached at any address, those of a request
where `AllowedAddresses` lets it. A failure is a result with a sentence; its cause is logged.
"""

import asyncio
import hashlib
import json
import logging
import shlex
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import msgspec

from engine.fair_limit import FairLimit, NoSlot
from server.errors import ApiError
from server.generation.call_arguments import load_object
from server.generation.hosted_items import source_urls
from server.generation.hosted_tools_of_response import McpCredentials, ToolResult
from server.hosted_tools import mcp_session
from server.hosted_tools.registered_servers import (
    COMMAND,
    GOES_ON_HEADER,
    SESSION_HEADER,
    RegisteredServers,
)
from server.hosted_tools.tool_lists import ToolList, ToolListCache, ToolListKey, usable_tools
from server.limits.shared_limit import SharedLimit
from server.outbound_http.allowed_addresses import (
    AllowedAddresses,
    Refused,
    allow_host_of,
    check_url,
    host_and_port,
    read_url,
)
from server.protocol.responses.items import McpError

if TYPE_CHECKING:
    from mcp.types import CallToolResult

log = logging.getLogger("holdfast.mcp")

T = TypeVar("T")
R = TypeVar("R")
MAX_OUTPUT_CHARACTERS = 100_000
"""Characters of a tool's output; the rest is replaced by a note of its length."""
MAX_CALLS = 2048
"""Tool calls running or waiting for a slot."""
MAX_CALLS_PER_TENANT = 512
LIST_SECONDS = 10.0
STOP_SECONDS = 5.0


class McpServers:
    """The client of all MCP servers. Thread-safe."""

    def __init__(
        self,
        registered: RegisteredServers,
        seconds: float,
        allowed: AllowedAddresses = AllowedAddresses(),  # noqa: B008 - frozen
        *,
        list_seconds: float = LIST_SECONDS,
        refuses_unserved: bool = False,
    ) -> None:
        """`seconds` is the time limit of a call, connecting included, and of its wait for a slot;
        `list_seconds` that of a list of tools. `allowed` applies to URLs in requests. `refuses_unserved` is
        whether tools of types that nobody serves are refused, not ignored.
        """
        self.registered = registered
        self.refuses_unserved = refuses_unserved
        self._seconds = seconds
        self._list_seconds = min(seconds, list_seconds)
        self._allowed = allowed
        self._lock = threading.Lock()
        self._closed = False
        self.loop: asyncio.AbstractEventLoop | None = None
        """The loop of the client's thread, once that is started."""
        self._thread: threading.Thread | None = None
        self._pending_calls: dict[UUID, set[Future[Any]]] = {}
        self._listings = ToolListCache()
        self._slots = FairLimit(mcp_session.MAX_CONCURRENT_CALLS, mcp_session.MAX_PER_TENANT)
        self._calls = SharedLimit("tool calls", total=MAX_CALLS, per_tenant=MAX_CALLS_PER_TENANT)

    def check(self, url: str) -> None:
        """Raises Refused for a URL that requests may not name; addresses are checked on connecting."""
        check_url(read_url(url), self._allowed)

    def find_tools(self, label: str, credentials: McpCredentials, tenant: str) -> "ToolList | Future[None]":
        """A server's tools from the cache, else a future that is done when the cache has them.

        A failure is an error in the list. Raises TooManyRequests or Overloaded.
        """
        key = ToolListKey(tenant, self._share_key(label, credentials), label, _digest(credentials))
        return self._listings.find(key, partial(self.start_listing, label, credentials, tenant))

    def start_listing(self, label: str, credentials: McpCredentials, tenant: str) -> "Future[ToolList]":
        """Ask a server for its tools. The future never raises."""
        try:
            location = self._location(label, credentials, tenant)
        except Exception as error:  # noqa: BLE001 - as in `_as_listed_tool`
            return _resolved(self._failed_list(label, error))
        return self._start(
            mcp_session.list_tools(location, self._list_seconds),
            lambda offered: ToolList(usable_tools(label, offered)),
            partial(self._failed_list, label),
        )

    def _failed_list(self, label: str, error: BaseException) -> ToolList:
        if isinstance(error, TimeoutError):
            return ToolList(
                error=f"The MCP server did not list its tools within {self._list_seconds:g} seconds."
            )
        log.warning("the tools of MCP server %s cannot be listed: %s", label, _cause(error))
        return ToolList(error="The MCP server could not list its tools.")

    def start_call(
        self,
        label: str,
        name: str,
        arguments: str,
        credentials: McpCredentials,
        *,
        tenant: str,
        response: UUID,
        trace_parent: str | None = None,
    ) -> "Future[ToolResult]":
        """Call a tool with JSON arguments once there is a slot. The future never raises."""
        if credentials.url is None and label not in self.registered.labels:
            return _resolved(failed_result("This MCP server is not registered here any more."))
        parsed = load_object(arguments or "{}")
        if parsed is None:
            return _resolved(failed_result("The arguments are not a JSON object."))
        try:
            location = self._location(label, credentials, tenant, response, trace_parent)
            self._calls.acquire(tenant)
        except ApiError as full:
            return _resolved(failed_result(str(full)))
        except Exception as error:  # noqa: BLE001 - as in `_uncalled`
            return _resolved(self._failed_call(label, error))
        server = self._share_key(label, credentials)
        call = mcp_session.call_tool(location, name, parsed, self._seconds, self._slots, tenant, server)
        result = self._start(call, _tool_result, partial(self._failed_call, label), response)
        result.add_done_callback(lambda _: self._calls.release(tenant))
        return result

    def _failed_call(self, label: str, error: BaseException) -> ToolResult:
        if isinstance(error, NoSlot):
            return failed_result("Too many calls of this MCP server are under way; try again later.")
        if isinstance(error, TimeoutError):
            return failed_result(f"The tool gave no answer within {self._seconds:g} seconds.")
        log.warning("a call of MCP server %s failed: %s", label, _cause(error))
        return failed_result("The MCP server could not be reached, or its response could not be read.")

    def cancel_calls(self, response: UUID) -> None:
        with self._lock:
            futures = list(self._pending_calls.get(response, ()))
        for future in futures:
            future.cancel()

    def close(self) -> None:
        """Stop the thread. Running calls fail; futures of calls started later are never done."""
        with self._lock:
            self._closed = True
            loop, self.loop = self.loop, None
        if loop is not None and self._thread is not None:
            asyncio.run_coroutine_threadsafe(mcp_session.cancel_others(), loop).add_done_callback(
                lambda _done: loop.call_soon_threadsafe(loop.stop)
            )
            self._thread.join(STOP_SECONDS)

    def _location(
        self,
        label: str,
        credentials: McpCredentials,
        tenant: str,
        response: UUID | None = None,
        trace_parent: str | None = None,
    ) -> mcp_session.ServerLocation:
        """The server's URL and headers, or its command; with a session id if registered. Raises Refused."""
        more = {} if trace_parent is None else {"traceparent": trace_parent}
        if credentials.url is not None:
            self.check(credentials.url)
            return mcp_session.Remote(credentials.url, {**credentials.headers, **more}, self._allowed)
        location = self.registered.locations[label]
        if location.startswith(COMMAND):
            return mcp_session.LocalProcess(shlex.split(location.removeprefix(COMMAND)))
        if response is not None and credentials.session is not None:
            more[GOES_ON_HEADER] = "true"
        headers = self.registered.headers(
            label, credentials.headers, tenant, (credentials.session or response.hex) if response else None
        )
        return mcp_session.Remote(location, {**headers, **more}, allow_host_of(location))

    def _share_key(self, label: str, credentials: McpCredentials) -> str:
        """The server's name in limits: the label of a registered one, else host and port."""
        if credentials.url is None:
            return label
        try:
            host, port = host_and_port(read_url(credentials.url))
        except Refused:
            return ""
        return f"{host}:{port}"

    def _start(
        self,
        exchange: Coroutine[Any, Any, T],
        make: Callable[[T], R],
        explain: Callable[[BaseException], R],
        response: UUID | None = None,
    ) -> "Future[R]":
        """A future of `make(result)`, or of `explain(error)` for any error."""
        result: Future[R] = Future()

        def finish(future: "Future[T]") -> None:
            if response is not None:
                self._discard(response, future)
            try:
                value = make(future.result())
            except BaseException as error:  # noqa: BLE001 - whatever a server makes its client raise
                value = explain(error)
            result.set_result(value)

        with self._lock:
            if self._closed:
                exchange.close()
                return result
            future = asyncio.run_coroutine_threadsafe(exchange, self._ensure_loop())
            if response is not None:
                self._pending_calls.setdefault(response, set()).add(future)
        future.add_done_callback(finish)
        return result

    def _discard(self, response: UUID, future: "Future[Any]") -> None:
        with self._lock:
            self._pending_calls[response].discard(future)
            if not self._pending_calls[response]:
                del self._pending_calls[response]

    def _ensure_loop(self) -> asyncio.AbstractEventLoop:
        """The loop, started with the first exchange. The caller has the lock."""
        if self.loop is None:
            self.loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=_run_loop, args=[self.loop], name="mcp", daemon=True)
            self._thread.start()
        return self.loop


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    """The thread's target. The library is imported before an exchange's time limit starts."""
    import mcp  # noqa: F401 - 20 MB, loaded only if MCP is used

    loop.run_forever()
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def _resolved(value: R) -> "Future[R]":
    future: Future[R] = Future()
    future.set_result(value)
    return future


def _digest(credentials: McpCredentials) -> bytes:
    """A digest of the URL and headers that a list may depend on; a registered server's session id is none."""
    headers = sorted(
        (name.lower(), value)
        for name, value in credentials.headers.items()
        if credentials.url is not None or name.lower() != SESSION_HEADER
    )
    return hashlib.sha256(msgspec.json.encode([credentials.url, headers])).digest()


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
    """The result of a call that no tool answered."""
    return ToolResult(error=McpError("mcp_protocol_error", code=-32000, message=message))


def _cause(error: BaseException) -> str:
    """The error's type without its message, which may have secrets; of a group, its first error's."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return type(error).__name__
