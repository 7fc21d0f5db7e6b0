"""The runner as an MCP server over streamable HTTP: `python`, and `exec` of gpt-oss's `container`."""

import hmac
from collections.abc import Collection
from functools import partial
from typing import Annotated

import anyio.to_thread
from anyio import CapacityLimiter
from mcp.server.fastmcp import Context, FastMCP
from mcp.server.fastmcp.exceptions import ToolError
from pydantic import Field
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from runner.bubblewrap import HOME
from runner.limits import Limits
from runner.sandbox import CannotRun, Command
from runner.sessions import Busy, Sessions

SESSION_HEADER = "x-session-id"
"""Pieces of code that come under the same value find each other's variables and files; vLLM's name for it."""
TOKEN_HEADER = "x-holdfast-token"  # noqa: S105 - a header's name
MAX_SESSION_NAME = 256


def build(sessions: Sessions, limits: Limits, host: str) -> FastMCP:
    """A server that listens on that host. On loopback it answers to loopback's names only."""
    server = FastMCP(
        "holdfast-code-runner", host=host, stateless_http=True, json_response=True, log_level="WARNING"
    )
    threads = CapacityLimiter(sessions.most_pieces)
    ends = f"Ends after {limits.seconds:g} seconds. No network. Files in {HOME} are kept during the session."
    about = "Runs Python code and gives what it prints, and the value of a last line that is an expression. "

    async def run_piece(context: Context, piece: str | Command) -> str:  # type: ignore[type-arg]
        request = context.request_context.request
        name = request.headers.get(SESSION_HEADER) if isinstance(request, Request) else None
        if name is not None and not 0 < len(name) <= MAX_SESSION_NAME:
            raise ToolError(f"A session's name has 1 to {MAX_SESSION_NAME} characters.")
        return await anyio.to_thread.run_sync(partial(run_in_session, sessions, name, piece), limiter=threads)

    async def python(
        code: Annotated[str, Field(description="Python code, as for a notebook's cell")],
        context: Context,  # type: ignore[type-arg]
    ) -> str:
        return await run_piece(context, code)

    async def execute(
        cmd: Annotated[list[str], Field(description="The program and its arguments", min_length=1)],
        context: Context,  # type: ignore[type-arg]
        workdir: Annotated[str | None, Field(description=f"Where it runs; {HOME} unless given")] = None,
        env: Annotated[dict[str, str] | None, Field(description="More variables of its environment")] = None,
        timeout: Annotated[  # noqa: ASYNC109 - the tool's own word; nothing is waited for so long here
            float | None, Field(description="Seconds after which it is killed", gt=0)
        ] = None,
    ) -> str:
        return await run_piece(context, Command(cmd, workdir or HOME, env or {}, timeout))

    server.add_tool(python, name="python", description=about + ends, structured_output=False)
    server.add_tool(
        execute,
        name="exec",
        description=f"Runs a program and gives what it prints. {ends}",
        structured_output=False,
    )
    server.custom_route("/health", methods=["GET"])(_health)
    return server


class RequireToken:
    """Lets in only who sends one of the tokens, to all addresses but the health check's. An ASGI app."""

    def __init__(self, app: ASGIApp, tokens: Collection[str]) -> None:
        """Without any token everybody is let in."""
        self._app = app
        self._tokens = [token.encode() for token in tokens]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._tokens or scope["path"] == "/health":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(TOKEN_HEADER, "").encode()
        if any(hmac.compare_digest(given, token) for token in self._tokens):
            await self._app(scope, receive, send)
            return
        await PlainTextResponse("The token is missing or wrong.\n", 401)(scope, receive, send)


def run_in_session(sessions: Sessions, name: str | None, piece: str | Command) -> str:
    """The text that the model is told. Raises ToolError when nothing was run."""
    try:
        ran = sessions.run(name, piece)
    except Busy:
        raise ToolError("All sandboxes are at work; try again later.") from None
    except CannotRun as error:
        raise ToolError(str(error)) from None
    if ran.ended is None:
        return ran.output
    gone = f"[{ran.ended} Its variables and files are gone.]"
    return f"{ran.output.rstrip()}\n{gone}" if ran.output else gone


async def _health(_request: Request) -> Response:
    return PlainTextResponse("ok")
