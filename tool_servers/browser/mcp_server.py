"""The browser's MCP server: `search`, `open` and `find` as MCP tools, and the open pages of sessions."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import anyio.to_thread
from anyio import CapacityLimiter
from mcp.server.fastmcp import Context, FastMCP
from mcp.server.fastmcp.exceptions import ToolError
from mcp.types import CallToolResult, TextContent

from tool_servers.browser.browser_tabs import BrowserError, BrowserOutput, BrowserTabs, Web
from tool_servers.mcp_host import new_server, session_name, tenant_of

S = TypeVar("S", bound=str)
URLS_KEY = "holdfast/urls"
"""The field of a result's `_meta` with the URL of a page, or with those that a search found."""
MAX_URLS = 50
MAX_SESSIONS = 256
MAX_SESSIONS_PER_TENANT = 64
MAX_BYTES = 512 * 1024 * 1024
"""Bytes of the open pages of all sessions."""
MAX_BYTES_PER_TENANT = 128 * 1024 * 1024
MAX_ACTIONS = 64
MAX_ACTIONS_PER_TENANT = 16
IDLE_SECONDS = 1200.0


class _Session:
    def __init__(self, web: Web, tenant: str) -> None:
        self.tenant = tenant
        self.lock = threading.Lock()
        self.tabs = BrowserTabs(web)
        self.size = 0
        self.used_at = time.monotonic()


class BrowserSessions:
    """Open pages by session id, `<tenant>.<session>`. Thread-safe.

    At a tenant's limit of sessions or bytes its least recently used session ends.
    """

    def __init__(self, web: Web) -> None:
        self._web = web
        self._lock = threading.Lock()
        self._sessions: dict[str, _Session] = {}
        """The least recently used first."""
        self._acts: Counter[str] = Counter()

    def run(self, name: str | None, act: Callable[[BrowserTabs], S]) -> S:
        """Run an action on a session's pages; without a name on a new one. Raises ToolError for the model."""
        with self._counted(tenant_of(name)) as tenant:
            session = _Session(self._web, tenant) if name is None else self._find_or_create(name, tenant)
            with session.lock:
                try:
                    return act(session.tabs)
                except BrowserError as error:
                    raise ToolError(str(error)) from None
                finally:
                    with self._lock:
                        session.size = session.tabs.size
                        self._evict(tenant)

    @contextmanager
    def _counted(self, tenant: str) -> Iterator[str]:
        with self._lock:
            if self._acts[tenant] >= MAX_ACTIONS_PER_TENANT or self._acts.total() >= MAX_ACTIONS:
                raise ToolError("The browser is busy; try again later.")
            self._acts[tenant] += 1
        try:
            yield tenant
        finally:
            with self._lock:
                self._acts[tenant] -= 1
                if not self._acts[tenant]:
                    del self._acts[tenant]

    def _find_or_create(self, name: str, tenant: str) -> _Session:
        with self._lock:
            session = self._sessions.pop(name, None) or _Session(self._web, tenant)
            session.used_at = time.monotonic()
            self._sessions[name] = session  # moved to the end: the most recently used
            self._evict(tenant)
        return session

    def _evict(self, tenant: str) -> None:
        """End idle sessions, the tenant's beyond its limits, then the largest tenant's beyond the total."""
        old = time.monotonic() - IDLE_SECONDS
        for name in [name for name, session in self._sessions.items() if session.used_at <= old]:
            del self._sessions[name]
        self._shrink(tenant, MAX_SESSIONS_PER_TENANT, MAX_BYTES_PER_TENANT)
        while len(self._sessions) > MAX_SESSIONS or self._size(None) > MAX_BYTES:
            counts = Counter(session.tenant for session in self._sessions.values())
            sizes = {owner: self._size(owner) for owner in counts}
            largest = max(counts, key=lambda owner: (sizes[owner] / MAX_BYTES) + counts[owner] / MAX_SESSIONS)
            self._shrink(largest, counts[largest] - 1, MAX_BYTES)

    def _shrink(self, tenant: str, most: int, most_bytes: int) -> None:
        """End the tenant's least recently used sessions until it is within these limits."""
        own = [name for name, session in self._sessions.items() if session.tenant == tenant]
        size = self._size(tenant)
        while own and (len(own) > most or size > most_bytes):
            size -= self._sessions.pop(own.pop(0)).size

    def _size(self, tenant: str | None) -> int:
        return sum(session.size for session in self._sessions.values() if tenant in (None, session.tenant))


def build_server(web: Web, host: str) -> FastMCP:
    sessions = BrowserSessions(web)
    threads = CapacityLimiter(MAX_ACTIONS)
    server = new_server("holdfast-browser", host)

    async def search(query: str, context: Context, topn: int = 10, source: str = "web") -> CallToolResult:  # type: ignore[type-arg]  # noqa: ARG001
        return await _act(sessions, threads, context, lambda browsing: browsing.search(query, topn))

    async def open_page(
        context: Context,  # type: ignore[type-arg]
        id: int | str = -1,  # noqa: A002 - the model's name for it
        cursor: int = -1,
        loc: int = -1,
        num_lines: int = -1,
    ) -> CallToolResult:
        return await _act(
            sessions, threads, context, lambda browsing: browsing.open(id, cursor, loc, num_lines)
        )

    async def find(pattern: str, context: Context, cursor: int = -1) -> CallToolResult:  # type: ignore[type-arg]
        return await _act(sessions, threads, context, lambda browsing: browsing.find(pattern, cursor))

    for name, act, about in (
        ("search", search, "Searches the web."),
        ("open", open_page, "Opens link `id` of the page `cursor`, or the URL `id`, at line `loc`."),
        ("find", find, "Finds a text in the page `cursor`, or in the one opened last."),
    ):
        server.add_tool(act, name=name, description=about, structured_output=False)
    return server


async def _act(
    sessions: BrowserSessions,
    threads: CapacityLimiter,
    context: Context,  # type: ignore[type-arg]
    act: Callable[[BrowserTabs], BrowserOutput],
) -> CallToolResult:
    run = partial(sessions.run, session_name(context), act)
    shown = await anyio.to_thread.run_sync(run, limiter=threads)
    return CallToolResult(
        content=[TextContent(type="text", text=str(shown))], _meta={URLS_KEY: list(shown.urls[:MAX_URLS])}
    )
