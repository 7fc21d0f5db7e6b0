"""The command `holdfast-browser`: an MCP server for web search. Exit codes: 0, or 1 with an error message."""

import argparse
import asyncio
import sys
from collections.abc import Sequence

from hypercorn.asyncio import serve
from hypercorn.config import Config as Hypercorn

from server.browser.browser_tabs import Web
from server.browser.mcp_server import RequireToken, build_server
from server.configuration.environment import tool_tokens
from server.configuration.settings import LOOPBACK
from server.outbound_http.allowed_addresses import Refused, allow_host_of, read_allowed
from server.protocol import bounded_process


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        allowed = read_allowed(options.allow)
        search_url = options.search_url or None
        if search_url is not None:
            allow_host_of(search_url)
    except (ValueError, Refused) as error:
        print(f"holdfast-browser: {error}", file=sys.stderr, flush=True)  # noqa: T201 - this is a command line
        return 1
    config = Hypercorn()
    config.bind = [f"{options.host}:{options.port}"]
    tokens = tool_tokens()
    if not tokens and options.host not in LOOPBACK:
        print(  # noqa: T201 - this is a command line
            "holdfast-browser: whoever reaches this port can fetch pages; HOLDFAST_TOOL_TOKEN closes it",
            file=sys.stderr,
            flush=True,
        )
    if (lacking := bounded_process.missing()) is not None:
        print(  # noqa: T201 - this is a command line
            f"holdfast-browser: the processes that read pages have a part of their sandbox: {lacking}",
            file=sys.stderr,
            flush=True,
        )
    app = RequireToken(build_server(Web(search_url, allowed), options.host).streamable_http_app(), tokens)
    asyncio.run(serve(app, config))  # type: ignore[arg-type]
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="holdfast-browser",
        description="Searches and reads the web for models, as an MCP server.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on; whoever reaches it can fetch pages")
    add("--port", type=int, default=8200, help="port to listen on")
    add("--search-url", help="a SearXNG instance's /search address, with its JSON format switched on")
    add(
        "--allow",
        default="",
        help="what may be opened, with commas between: host, host:port, *.host, * for every public host, http://"
        " before any of them for http beside https, and networks of addresses that are not public",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
