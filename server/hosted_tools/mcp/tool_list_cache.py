"""What MCP servers offer, as they said a short while ago: each is asked by one request for all that wait.

A list is a tenant's own, for the credentials that it was asked with. For any thread; nobody waits here.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

import msgspec

from server.errors import Overloaded, TooManyRequests
from server.limits.concurrency import SharedLimit
from server.protocol.responses.hosted_items import ListedTool
from server.protocol.typed import decode_as

FRESH_SECONDS = 60.0
FAILED_SECONDS = 10.0
"""For how long a server that could not list its tools is not asked again."""
MAX_PENDING = 64
MAX_PENDING_PER_TENANT = 8
MAX_PENDING_PER_SERVER = 16
MAX_BYTES = 64 * 1024 * 1024
MAX_BYTES_PER_TENANT = 16 * 1024 * 1024
_ENTRY_BYTES = 16 * 1024
"""What an entry counts beside its list, so that many small ones are bounded, too."""


class ToolList(msgspec.Struct, frozen=True):
    """What a server offers, or why it offers nothing."""

    tools: list[ListedTool] = []
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ToolListKey:
    """Whose list it is, and of which server."""

    tenant: str
    server: str
    """What its share is counted by: a registered server's label, or a host and port."""
    label: str
    credentials: bytes
    """A digest of the URL and of the headers."""


@dataclass(frozen=True, slots=True)
class _Entry:
    encoded: bytes
    """As JSON: so its size is known, and small."""
    expires_at: float


class ToolListCache:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: OrderedDict[ToolListKey, _Entry] = OrderedDict()
        """The longest unused first."""
        self._pending: dict[ToolListKey, Future[None]] = {}
        self._by_tenant = SharedLimit(
            "MCP servers listing their tools", total=MAX_PENDING, per_tenant=MAX_PENDING_PER_TENANT
        )
        self._by_server = SharedLimit("lists of tools", total=MAX_PENDING, per_tenant=MAX_PENDING_PER_SERVER)

    def find(self, key: ToolListKey, ask: Callable[[], "Future[ToolList]"]) -> "ToolList | Future[None]":
        """The list, or what is done when it is there. `ask` begins to get one, and is not called in vain.

        Raises TooManyRequests or Overloaded where too many servers are being asked.
        """
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
            asked = ask()
        except BaseException:
            self._finish(key, done, ToolList(error="The MCP server could not be asked."))
            raise
        asked.add_done_callback(lambda future: self._finish(key, done, _result(future)))
        return done

    def _acquire(self, key: ToolListKey) -> None:
        self._by_tenant.acquire(key.tenant)
        try:
            self._by_server.acquire(key.server)
        except (TooManyRequests, Overloaded):
            self._by_tenant.release(key.tenant)
            raise Overloaded(
                f"The MCP server '{key.label[:100]}' is asked for its tools by too many requests; try again "
                "later."
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
        """Drops what has expired, then of this tenant's what is beyond its share, then of all's."""
        now = self._clock()
        for key in [key for key, entry in self._entries.items() if entry.expires_at <= now]:
            del self._entries[key]
        own = [key for key in self._entries if key.tenant == tenant]
        self._drop(own, MAX_BYTES_PER_TENANT)
        self._drop(list(self._entries), MAX_BYTES)

    def _drop(self, keys: list[ToolListKey], most: int) -> None:
        """Drops the longest unused of these until at most so many bytes are left; never the last one."""
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
    except BaseException:  # noqa: BLE001 - cancelled at the end of the process, or a mistake of ours
        return ToolList(error="The MCP server could not list its tools.")
