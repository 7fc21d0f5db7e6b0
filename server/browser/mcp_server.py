"""The browser as an MCP server, over streamable HTTP: `search`, `open` and `find`, as gpt-oss knows them."""

import threading
import time
from collections.abc import Callable
from functools import partial

import anyio.to_thread
from mcp.server.fastmcp import Context, FastMCP
from mcp.server.fastmcp.exceptions import ToolError
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from server.browser.browsing import Browsing, Impossible, Web

SESSION_HEADER = "x-session-id"
"""Calls that come under the same value find each other's pages; vLLM's name for it."""
MOST_SESSIONS = 256
IDLE_SECONDS = 1200.0


class _Session:
    def __init__(self, web: Web) -> None:
        self.lock = threading.Lock()
        self.browsing = Browsing(web)
        self.used_at = time.monotonic()


class Sessions:
    """What each model has open, by the name of its session. For any thread."""

    def __init__(self, web: Web) -> None:
        self._web = web
        self._lock = threading.Lock()
        self._sessions: dict[str, _Session] = {}

    def act(self, name: str | None, act: Callable[[Browsing], str]) -> str:
        """What it gives. Raises ToolError with words for the model."""
        session = _Session(self._web) if name is None else self._named(name)
        with session.lock:
            try:
                return act(session.browsing)
            except Impossible as error:
                raise ToolError(str(error)) from None

    def _named(self, name: str) -> _Session:
        now = time.monotonic()
        with self._lock:
            session = self._sessions.pop(name, None) or _Session(self._web)
            session.used_at = now
            self._sessions[name] = session  # the last again, so that the first is the longest unused
            for old, other in list(self._sessions.items()):
                if len(self._sessions) <= MOST_SESSIONS and other.used_at > now - IDLE_SECONDS:
                    break
                del self._sessions[old]
        return session


def build(web: Web, host: str) -> FastMCP:
    """A server that listens on that host. On loopback it answers to loopback's names only."""
    sessions = Sessions(web)
    server = FastMCP(
        "holdfast-browser", host=host, stateless_http=True, json_response=True, log_level="WARNING"
    )

    async def search(query: str, context: Context, topn: int = 10, source: str = "web") -> str:  # type: ignore[type-arg]  # noqa: ARG001
        return await _act(sessions, context, lambda browsing: browsing.search(query, topn))

    async def open_page(
        context: Context,  # type: ignore[type-arg]
        id: int | str = -1,  # noqa: A002 - the model's name for it
        cursor: int = -1,
        loc: int = -1,
        num_lines: int = -1,
    ) -> str:
        return await _act(sessions, context, lambda browsing: browsing.open(id, cursor, loc, num_lines))

    async def find(pattern: str, context: Context, cursor: int = -1) -> str:  # type: ignore[type-arg]
        return await _act(sessions, context, lambda browsing: browsing.find(pattern, cursor))

    for name, act, about in (
        ("search", search, "Searches the web."),
        ("open", open_page, "Opens link `id` of the page `cursor`, or the URL `id`, at line `loc`."),
        ("find", find, "Finds a text in the page `cursor`, or in the one opened last."),
    ):
        server.add_tool(act, name=name, description=about, structured_output=False)
    server.custom_route("/health", methods=["GET"])(_health)
    return server


async def _act(sessions: Sessions, context: Context, act: Callable[[Browsing], str]) -> str:  # type: ignore[type-arg]
    request = context.request_context.request
    name = request.headers.get(SESSION_HEADER) if isinstance(request, Request) else None
    return await anyio.to_thread.run_sync(partial(sessions.act, name, act))


async def _health(_request: Request) -> Response:
    return PlainTextResponse("ok")
