"""MCP servers' lists of tools: which tools are usable, and a cache in which requests share one exchange.

A list belongs to a tenant and to the credentials that it was fetched with. Thread-safe; no call waits.
"""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from server.errors import Overloaded, TooManyRequests
from server.limits.shared_limit import SharedLimit
from server.protocol.decode import decode_as
from server.protocol.responses.content_parts import is_nested_deeper
from server.protocol.responses.items import ListedTool
from server.protocol.responses.tools import ALLOWED_NAME

if TYPE_CHECKING:
    from mcp.types import Tool as OfferedTool

log = logging.getLogger("holdfast.mcp")

MAX_TOOLS = 128
MAX_SCHEMA = 65_536
MAX_TOOLS_BYTES = 1024 * 1024
"""Bytes of all schemas and descriptions of one server."""
MAX_DEPTH = 32
FRESH_SECONDS = 60.0
FAILED_SECONDS = 10.0
MAX_PENDING = 64
MAX_PENDING_PER_TENANT = 8
MAX_PENDING_PER_SERVER = 16
MAX_BYTES = 64 * 1024 * 1024
MAX_BYTES_PER_TENANT = 16 * 1024 * 1024
_ENTRY_BYTES = 16 * 1024
"""Counted for each entry beside its list, so that the number of entries is limited, too."""


class ToolList(msgspec.Struct, frozen=True):
    tools: list[ListedTool] = []
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ToolListKey:
    """Identifies a tenant's list of one server."""

    tenant: str
    server: str
    """The server's name in limits: a registered server's label, or host and port."""
    label: str
    credentials: bytes
    """A digest of the URL and of the headers."""


@dataclass(frozen=True, slots=True)
class _Entry:
    encoded: bytes
    """The ToolList as JSON, whose size is known."""
    expires_at: float


class ToolListCache:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: OrderedDict[ToolListKey, _Entry] = OrderedDict()
        """The least recently used first."""
        self._pending: dict[ToolListKey, Future[None]] = {}
        self._by_tenant = SharedLimit(
            "MCP servers listing their tools", total=MAX_PENDING, per_tenant=MAX_PENDING_PER_TENANT
        )
        self._by_server = SharedLimit("lists of tools", total=MAX_PENDING, per_tenant=MAX_PENDING_PER_SERVER)

    def find(self, key: ToolListKey, ask: Callable[[], "Future[ToolList]"]) -> "ToolList | Future[None]":
        """The cached list, or a future of it, which `ask` starts. Raises TooManyRequests or Overloaded."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None and entry.expires_at > self._clock():
                self._entries.move_to_end(key)
                return decode_as(entry.encoded, ToolList)
            if (pending := self._pending.get(key)) is not None:
                return pending
            self._acquire(key)
            done: Future[None] = Future()
            self._pending[key] = done
        try:
            exchange = ask()
        except BaseException:
            self._finish(key, done, ToolList(error="The MCP server could not be reached."))
            raise
        exchange.add_done_callback(lambda future: self._finish(key, done, _result(future)))
        return done

    def _acquire(self, key: ToolListKey) -> None:
        self._by_tenant.acquire(key.tenant)
        try:
            self._by_server.acquire(key.server)
        except (TooManyRequests, Overloaded):
            self._by_tenant.release(key.tenant)
            raise Overloaded(
                f"The MCP server '{key.label[:100]}' is asked for its tools by too many requests; try again "
                "later.",
                limit="tool lists of a server",
            ) from None

    def _finish(self, key: ToolListKey, done: "Future[None]", listing: ToolList) -> None:
        seconds = FRESH_SECONDS if listing.error is None else FAILED_SECONDS
        with self._lock:
            del self._pending[key]
            self._entries[key] = _Entry(msgspec.json.encode(listing), self._clock() + seconds)
            self._entries.move_to_end(key)
            self._evict(key.tenant)
        self._by_tenant.release(key.tenant)
        self._by_server.release(key.server)
        done.set_result(None)

    def _evict(self, tenant: str) -> None:
        """Drop expired entries, then this tenant's beyond its limit, then any beyond the total."""
        now = self._clock()
        for key in [key for key, entry in self._entries.items() if entry.expires_at <= now]:
            del self._entries[key]
        own = [key for key in self._entries if key.tenant == tenant]
        self._drop(own, MAX_BYTES_PER_TENANT)
        self._drop(list(self._entries), MAX_BYTES)

    def _drop(self, keys: list[ToolListKey], most: int) -> None:
        """Drop the least recently used of these keys until `most` bytes are left, but never the last."""
        size = sum(self._size(key) for key in keys)
        for key in keys[:-1]:
            if size <= most:
                return
            size -= self._size(key)
            del self._entries[key]

    def _size(self, key: ToolListKey) -> int:
        return len(self._entries[key].encoded) + _ENTRY_BYTES


def _result(future: "Future[ToolList]") -> ToolList:
    try:
        return future.result()
    except BaseException:  # noqa: BLE001 - cancelled at shutdown, or a bug
        return ToolList(error="The MCP server could not list its tools.")


def usable_tools(label: str, offered: Sequence["OfferedTool | ListedTool"]) -> list[ListedTool]:
    """The tools that a model can be offered; others are logged and left out."""
    tools: dict[str, ListedTool] = {}
    room = MAX_TOOLS_BYTES
    for tool in map(_as_listed_tool, offered[:MAX_TOOLS]):
        size = _encoded_size(tool)
        if not ALLOWED_NAME.fullmatch(tool.name) or tool.name in tools or size is None or size > room:
            log.warning("MCP server %s offers a tool that cannot be used: %.100r", label, tool.name)
            continue
        room -= size
        tools[tool.name] = tool
    return list(tools.values())


def _as_listed_tool(tool: "OfferedTool | ListedTool") -> ListedTool:
    if isinstance(tool, ListedTool):
        return tool
    annotations = tool.annotations.model_dump(exclude_none=True) if tool.annotations else {}
    hints = {name: hint for name, hint in annotations.items() if isinstance(hint, bool)}
    description = (tool.description or "")[:MAX_SCHEMA] or None
    return ListedTool(tool.name, description, tool.inputSchema, hints or None)


def _encoded_size(tool: ListedTool) -> int | None:
    """Bytes of its description and schema as JSON; None if they cannot be stored or are too deep."""
    if is_nested_deeper(tool.input_schema, MAX_DEPTH):
        return None
    try:
        encoded = msgspec.json.encode([tool.description, tool.input_schema])
    except (UnicodeEncodeError, msgspec.MsgspecError, TypeError, ValueError):
        return None
    return None if b"\\u0000" in encoded or len(encoded) > 2 * MAX_SCHEMA else len(encoded)
