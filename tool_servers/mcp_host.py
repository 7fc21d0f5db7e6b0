"""The host of an MCP server over HTTP: options, log, access tokens, names of sessions, start and stop."""

import argparse
import asyncio
import hmac
import os
import sys
from collections.abc import Collection
from dataclasses import dataclass

from hypercorn.asyncio import serve
from hypercorn.config import Config as Hypercorn
from mcp.server.fastmcp import Context, FastMCP
from mcp.server.fastmcp.exceptions import ToolError
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

SESSION_HEADER = "x-session-id"
"""vLLM's header: calls with the same value share variables and files, or open pages."""
GOES_ON_HEADER = "x-session-goes-on"
"""Set where calls with that value were made before."""
TOKEN_HEADER = "x-holdfast-token"  # noqa: S105 - a header's name
MAX_SESSION_NAME = 256
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


@dataclass(frozen=True, slots=True)
class Program:
    """The command that serves one MCP server until a signal."""

    name: str
    description: str
    port: int
    power: str
    """A verb and its object: the power of whoever reaches the port."""

    def parser(self) -> argparse.ArgumentParser:
        parser = argparse.ArgumentParser(
            prog=self.name,
            description=self.description,
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
        about = f"address to listen on; whoever reaches it can {self.power}"
        parser.add_argument("--host", default="127.0.0.1", help=about)
        parser.add_argument("--port", type=int, default=self.port, help="port to listen on")
        return parser

    def say(self, sentence: str) -> None:
        print(f"{self.name}: {sentence}", file=sys.stderr, flush=True)  # noqa: T201 - this is a command line

    def serve(self, server: FastMCP, host: str, port: int, stop_seconds: float = 3.0) -> None:
        """Serve until SIGINT or SIGTERM; calls under way then have `stop_seconds` to end."""
        tokens = _tokens()
        if not tokens and host not in _LOOPBACK:
            self.say(f"whoever reaches this port can {self.power}; HOLDFAST_TOOL_TOKEN closes it")
        config = Hypercorn()
        config.bind = [f"{host}:{port}"]
        config.graceful_timeout = stop_seconds
        app = RequireToken(server.streamable_http_app(), tokens)
        asyncio.run(serve(app, config))  # type: ignore[arg-type]


def new_server(name: str, host: str) -> FastMCP:
    """An MCP server without tools, which answers /health; on loopback, to loopback's Host headers only."""
    server = FastMCP(name, host=host, stateless_http=True, json_response=True, log_level="WARNING")
    server.custom_route("/health", methods=["GET"])(_health)
    return server


def session_name(context: Context) -> str | None:  # type: ignore[type-arg]
    """The name in the request's session header; None without one. Raises ToolError if it is long or empty."""
    request = context.request_context.request
    name = request.headers.get(SESSION_HEADER) if isinstance(request, Request) else None
    if name is not None and not 0 < len(name) <= MAX_SESSION_NAME:
        raise ToolError(f"A session's name has 1 to {MAX_SESSION_NAME} characters.")
    return name


def session_goes_on(context: Context) -> bool:  # type: ignore[type-arg]
    request = context.request_context.request
    return isinstance(request, Request) and GOES_ON_HEADER in request.headers


def tenant_of(name: str | None) -> str:
    """The tenant in a session's name, `<tenant>.<session>`; names without a dot belong to the tenant ""."""
    tenant, dot, _ = (name or "").partition(".")
    return tenant if dot else ""


class RequireToken:
    """ASGI middleware: answers 401 to requests without a valid token, but for /health."""

    def __init__(self, app: ASGIApp, tokens: Collection[str]) -> None:
        """Without tokens every request passes."""
        self._app = app
        self._tokens = [token.encode() for token in tokens]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_open = scope["type"] != "http" or not self._tokens or scope["path"] == "/health"
        header = b"" if is_open else Headers(scope=scope).get(TOKEN_HEADER, "").encode()
        app: ASGIApp = PlainTextResponse("The token is missing or wrong.\n", 401)
        if is_open or any(hmac.compare_digest(header, token) for token in self._tokens):
            app = self._app
        await app(scope, receive, send)


def _tokens() -> list[str]:
    """The tokens of HOLDFAST_TOOL_TOKEN: `label=token,…` as for the server, or tokens without labels."""
    entries = map(str.strip, os.environ.get("HOLDFAST_TOOL_TOKEN", "").split(","))
    return [entry.partition("=")[2] or entry for entry in entries if entry]


async def _health(_request: Request) -> Response:
    return PlainTextResponse("ok")
