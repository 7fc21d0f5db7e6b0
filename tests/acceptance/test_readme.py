"""The README's examples, as they stand, against the demo model: only the address is the test's own server's.

Blocks of `sh` and `python` are run in order, those of Python with the names that the ones before them made.
What `console` shows is for a shell with the program installed, and is not run but where it is named below.
"""

import contextlib
import io
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.test_mcp import Mcp, running
from tests.support.invariants import check
from tests.support.server_process import REPOSITORY, ServerProcess, free_port, run_command

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
NOT_RUN: dict[str, str] = {}
"""The first line of a block of `sh` or `python` that is not run, and why."""
SAID = "Nice to meet you, Bartholomew.\nYour name is Bartholomew.\n1, 2, 3, 4, 5\n"


def blocks(kind: str) -> list[str]:
    return [text for name, text in BLOCKS if name == kind and text.partition("\n")[0] not in NOT_RUN]


@pytest.fixture(scope="module")
def server(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The demo model with an MCP server that is registered as the README says."""
    with running(Mcp(free_port(), tmp_path_factory.mktemp("city"))) as city:
        process = ServerProcess(module_database, settings={"tool_server": f"city={city.url}"})
        try:
            process.start()
            yield process
        finally:
            process.stop()
    check(module_database)


def at(server: ServerProcess, text: str) -> str:
    """The example with the server's address in the place of the usual one."""
    address = server.url.removeprefix("http://")
    return text.replace("localhost:8000", address).replace("127.0.0.1:8000", address)


def test_the_python_examples_run_in_order(
    server: ServerProcess, module_database: str, tmp_path: Path
) -> None:
    greeting = tmp_path / "greeting.txt"
    greeting.write_text("Greet {{name}}.")
    assert "holdfast prompts put greeting greeting.txt" in README
    put = run_command("prompts", "put", "greeting", str(greeting), database_url=module_database)
    assert put.returncode == 0, put.stderr
    names: dict[str, Any] = {}
    printed = io.StringIO()
    examples = blocks("python")
    assert len(examples) >= 4
    with contextlib.redirect_stdout(printed):
        for example in examples:
            exec(compile(at(server, example), "README.md", "exec"), names)  # noqa: S102 - our own text
    assert printed.getvalue() == SAID.rstrip("\n")
    assert f"```\n{SAID}```" in README


def test_the_shells_examples_run_and_the_model_calls_the_servers_tool(server: ServerProcess) -> None:
    (example,) = blocks("sh")
    done = subprocess.run(
        ["sh", "-c", at(server, example)], capture_output=True, text=True, timeout=120, check=True
    )
    response = json.loads(done.stdout)
    assert response["status"] == "completed", response
    (call,) = [item for item in response["output"] if item["type"] == "mcp_call"]
    assert (call["name"], call["server_label"], call["output"]) == ("get_weather", "city", "It is sunny.")
    assert json.loads(call["arguments"]) == {"city": "Paris"}
    assert response["output"][-1]["type"] == "message"


def test_a_block_that_is_not_run_is_in_the_readme_and_has_a_reason() -> None:
    lines = {text.partition("\n")[0] for name, text in BLOCKS if name in ("sh", "python")}
    assert NOT_RUN.keys() <= lines
    assert all(NOT_RUN.values())
