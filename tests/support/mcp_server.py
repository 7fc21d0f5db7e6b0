"""A real MCP server for tests, run as `python -m tests.support.mcp_server PORT FOLDER [TRANSPORT]`.

Its tools leave a line in FOLDER/calls for each call. `get_time` answers once FOLDER/go
is there, `get_weather` unless FOLDER/wait is.
"""

import asyncio
import sys
from pathlib import Path

from mcp.server.fastmcp import FastMCP
from mcp.types import ToolAnnotations


def main(port: int, folder: Path, transport: str) -> None:
    server = FastMCP("weather", host="127.0.0.1", port=port, log_level="ERROR")

    def note(line: str) -> None:
        with (folder / "calls").open("a") as calls:
            calls.write(line + "\n")

    @server.tool()
    async def get_weather(city: str) -> str:
        """Weather of a city"""
        note(f"get_weather {city}")
        while (folder / "wait").exists():  # noqa: ASYNC110 - who removes it is another process
            await asyncio.sleep(0.02)
        if (folder / "broken").exists():
            raise ValueError("The sky has fallen.")
        if (folder / "huge").exists():
            return "x" * 300_000
        return "It is sunny."

    @server.tool(annotations=ToolAnnotations(readOnlyHint=True))
    async def get_time(city: str) -> str:
        """Time of a city"""
        note(f"get_time {city}")
        while not (folder / "go").exists():  # noqa: ASYNC110 - who makes it is another process
            await asyncio.sleep(0.02)
        return "It is noon."

    server.run(transport=transport)  # type: ignore[arg-type]


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), (sys.argv[3:] or ["streamable-http"])[0])
