"""The demo model with other people's MCP server and our code runner, in one response that a kill interrupts.

The MCP server is `@modelcontextprotocol/server-everything`, which `make clients` installs.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from operator import add, mul, sub
from pathlib import Path

import pytest

from tests.acceptance.sdk_types import check_goes_on
from tests.acceptance.test_code_runner import Runner, running_runner
from tests.clients.test_clients import CLIENTS, needs
from tests.fix_server import StartServer
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, free_port
from tests.support.sse import create, replay

EVERYTHING = CLIENTS / "node_modules" / "@modelcontextprotocol" / "server-everything" / "dist" / "index.js"
SLOW = "trigger-long-running-operation"
PLAN = r"""
start: sum "\n" wait | said
sum: "<tool_call>\n{\"name\": \"python__python\", \"arguments\": {\"code\": \"" SUM END
wait: "<tool_call>\n{\"name\": \"everything__SLOW\", \"arguments\": {\"duration\": " SECONDS LAST
said: /[A-Z][^<]*/
SUM: /[1-9][0-9]? [-+*] [1-9][0-9]?/
SECONDS: /[2-5]/
LAST: "}}\n</tool_call>"
END: "\"}}\n</tool_call>"
""".replace("SLOW", SLOW)
"""One call of each tool, or text: the demo model never learnt to call two tools at once. What it calls them
with, and whether it calls them at all, is its own."""
BOTH_BEGUN, CODE_RAN = "response.mcp_call.in_progress", "response.code_interpreter_call.completed"
ASKED = "Received MCP POST request"
BEFORE_CALL = 5
"""So often it is asked before a call arrives: for its tools, and to open the call's session."""


def value(code: str) -> int:
    left, sign, right = code.split()
    return int({"+": add, "-": sub, "*": mul}[sign](int(left), int(right)))


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with running_runner() as opened:
        yield opened


@contextmanager
def everything(folder: Path) -> Iterator[tuple[str, Path]]:
    """The MCP server: its address, and what it says at its terminal."""
    port, said = free_port(), folder / "said"
    with said.open("wb") as file:
        process = subprocess.Popen(
            ["node", EVERYTHING, "streamableHttp"],
            env={**os.environ, "PORT": str(port)},
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        eventually(lambda: "listening" in said.read_text(), within=60)
        yield f"http://127.0.0.1:{port}/mcp", said
    finally:
        process.kill()
        process.wait()


@needs(EVERYTHING)
def test_demo_model_uses_both_in_one_background_stream_that_a_kill_during_a_call_interrupts(
    runner: Runner, start_server: StartServer, tmp_path: Path
) -> None:
    with everything(tmp_path) as (url, said):
        server = start_server(
            engine="model", tool_server=f"everything={url},python=http://127.0.0.1:{runner.port}/mcp"
        )
        body = {
            "model": MODEL,
            "input": "Use python for 6 * 7 and wait for 3.",
            "tools": [
                {
                    "type": "mcp",
                    "server_label": "everything",
                    "require_approval": "never",
                    "allowed_tools": [SLOW],
                },
                {"type": "code_interpreter", "container": {"type": "auto"}},
            ],
            "structured_outputs": {"grammar": PLAN},
            "temperature": 0,
            "background": True,
        }
        seen = []
        with create(server.url, body) as stream:
            for frame in stream:
                seen.append(frame)
                if {BOTH_BEGUN, CODE_RAN} <= {one.event for one in seen}:
                    break
            eventually(lambda: said.read_text().count(ASKED) == BEFORE_CALL + 1)
            server.restart()
        with replay(server.url, seen[0].json["response"]["id"]) as stream:
            frames = list(stream)
        assert said.read_text().count("Session initialized") == 3, "to list, to call, and to call again"
    check_goes_on(seen, frames)
    told = frames[-1].json["response"]
    assert told["status"] == "completed"
    _, code, call, message = told["output"]
    assert code["type"] == "code_interpreter_call"
    assert code["outputs"] == [{"type": "logs", "logs": f"{value(code['code'])}\n"}]
    assert (call["type"], call["name"], call["status"]) == ("mcp_call", SLOW, "completed")
    assert call["output"].startswith("Long running operation completed.")
    assert message["type"] == "message"
