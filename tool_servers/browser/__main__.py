"""The command `holdfast-browser`: an MCP server for web search. Exit codes: 0, or 1 with an error message."""

import sys
from collections.abc import Sequence

from tool_servers import seccomp
from tool_servers.browser.allowed_web import ForbiddenUrl, allow_host_of, read_allowed
from tool_servers.browser.browser_tabs import Web
from tool_servers.browser.mcp_server import build_server
from tool_servers.mcp_host import Program

PROGRAM = Program(
    "holdfast-browser", "Searches and reads the web for models, as an MCP server.", 8200, "fetch pages"
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = PROGRAM.parser()
    parser.add_argument(
        "--search-url", help="a SearXNG instance's /search address, with its JSON format switched on"
    )
    parser.add_argument(
        "--allow",
        default="",
        help="hosts to allow, with commas between: host, host:port, *.host, * for every public host, http://"
        " before any of them for http beside https, and networks of addresses that are not public",
    )
    options = parser.parse_args(arguments)
    try:
        allowed = read_allowed(options.allow)
        search_url = options.search_url or None
        if search_url is not None:
            allow_host_of(search_url)
    except (ValueError, ForbiddenUrl) as error:
        PROGRAM.say(str(error))
        return 1
    if not seccomp.can_filter():
        PROGRAM.say("the processes that read pages can open files and connections: the kernel has no seccomp")
    PROGRAM.serve(build_server(Web(search_url, allowed), options.host), options.host, options.port)
    return 0


if __name__ == "__main__":
    sys.exit(main())
