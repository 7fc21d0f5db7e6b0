"""The documents' examples, unchanged, against the demo model: only the address is the test's own server's.

Blocks of `python` are run in the order of their page, with the names that the ones before them made, and must
print what the plain block behind them shows. Blocks of `sh` and `sql` are run, too. What `console` shows is
for a shell with the program installed; of it the commands that look at a database are run.
"""

import contextlib
import io
import json
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

from tests.support.documents import README, pages
from tests.support.eventually import eventually
from tests.support.invariants import check
from tests.support.server_process import REPOSITORY, ServerProcess, free_port, run_command


class Block(NamedTuple):
    page: str
    kind: str
    text: str
    prints: str | None
    """What the plain block directly behind this one shows."""


_FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```\n(\n```\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)


def _read(path: Path) -> list[Block]:
    found = _FENCED.findall(path.read_text(encoding="utf-8"))
    return [Block(path.name, kind, text, shown if tail else None) for _, kind, text, tail, shown in found]


IN_CLIENTS = "clients.md"
"""The page whose blocks run in other people's clients, by a test of their own."""
BLOCKS = {
    path.name: _read(path) for path in pages() if path.parent.name != "demo" and path.name != IN_CLIENTS
}
NOT_RUN: dict[str, str] = {
    "# receiver.py": "it serves until it is stopped, and is run by the tests of webhooks",
    "# city.py": "it serves until it is stopped: the server of these tests has it as a tool server",
    "create role holdfast login password 'SECRET';": "a database cannot be made within a transaction",
}
"""The first line of a block of `sh`, `sql` or `python` that is not run, and why."""
RUN_COMMANDS = (
    "audit",
    "purge",
    "storage",
    "prompts list",
    "db upgrade",
    "keys create",
    "keys list",
    "tenants",
    "prices",
    "trail",
)
"""Beginnings of the `holdfast` commands that are run."""
SAID = "Nice to meet you, Bartholomew.\nYour name is Bartholomew.\n1, 2, 3, 4, 5\n"


def blocks(kind: str) -> list[Block]:
    """Those that are run, in the order of the pages."""
    every = [block for page in BLOCKS.values() for block in page if block.kind == kind]
    return [block for block in every if block.text.strip().partition("\n")[0] not in NOT_RUN]


WITH_PYTHON = list(dict.fromkeys(block.page for block in blocks("python")))


@contextlib.contextmanager
def _city(program: Path) -> Iterator[str]:
    """The MCP server of docs/tools.md, on a port of its own; its address."""
    (block,) = [block for block in BLOCKS["tools.md"] if block.text.startswith("# city.py\n")]
    port = free_port()
    assert "port=8300" in block.text
    program.write_text(block.text.replace("port=8300", f"port={port}"))
    process = subprocess.Popen([sys.executable, str(program)], stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: _listens(port), within=60)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.terminate()
        process.wait(30)


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def server(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The demo model, with the MCP server of docs/tools.md and the prompt of docs/guides.md."""
    greeting = tmp_path_factory.mktemp("prompts") / "greeting.txt"
    greeting.write_text("Greet {{name}}.")
    put = run_command("prompts", "put", "greeting", str(greeting), database_url=module_database)
    assert put.returncode == 0, put.stderr
    with _city(tmp_path_factory.mktemp("city") / "city.py") as url:
        process = ServerProcess(module_database, settings={"tool_server": f"city={url}"})
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


@pytest.fixture(scope="module")
def vision_server(module_database: str) -> Iterator[ServerProcess]:
    """The demo model that reads pictures."""
    process = ServerProcess(module_database, settings={"model": REPOSITORY / "demo" / "holdfast-vision"})
    try:
        process.start()
        yield process
    finally:
        process.stop()


@pytest.mark.parametrize("page", WITH_PYTHON)
def test_the_python_examples_of_a_page_run_in_order(page: str, request: pytest.FixtureRequest) -> None:
    name = "vision_server" if page == "pictures.md" else "server"
    server: ServerProcess = request.getfixturevalue(name)
    names: dict[str, Any] = {}
    for block in BLOCKS[page]:
        if block.kind != "python" or block not in blocks("python"):
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(at(server, block.text), page, "exec"), names)  # noqa: S102 - our own text
        if block.prints is not None:
            assert printed.getvalue().rstrip("\n") == block.prints.rstrip("\n"), block.text


def test_the_examples_are_where_a_reader_looks_for_them() -> None:
    assert [block.prints for block in BLOCKS[README.name] if block.kind == "python"] == [SAID]
    assert {"README.md", "guides.md", "pictures.md"} <= set(WITH_PYTHON)
    assert len(blocks("python")) >= 12
    guides = [block.text for block in BLOCKS["guides.md"] if block.kind == "console"]
    assert any("holdfast prompts put greeting greeting.txt" in text for text in guides)


def test_the_shells_examples_run(server: ServerProcess) -> None:
    answers = {}
    for block in blocks("sh"):
        done = subprocess.run(
            ["sh", "-c", at(server, block.text)], capture_output=True, text=True, timeout=120, check=True
        )
        answers[block.page] = json.loads(done.stdout)
    assert all("error" not in answer or answer["error"] is None for answer in answers.values()), answers
    assert set(answers) >= {"tools.md", "guides.md"}
    _check_weather(answers["tools.md"])


def _check_weather(response: Any) -> None:
    """The model called the registered server's tool."""
    assert response["status"] == "completed", response
    (call,) = [item for item in response["output"] if item["type"] == "mcp_call"]
    assert (call["name"], call["server_label"], call["output"]) == ("get_weather", "city", "It is sunny.")
    assert json.loads(call["arguments"]) == {"city": "Paris"}
    assert response["output"][-1]["type"] == "message"


def test_the_sql_examples_run(database_url: str) -> None:
    examples = blocks("sql")
    assert len(examples) >= 4
    with psycopg.connect(database_url) as connection:
        for block in examples:
            connection.execute(block.text.replace("_…", "_" + "0" * 32).encode())
            connection.rollback()


def _commands() -> Iterator[Sequence[str]]:
    for block in blocks("console"):
        for line in block.text.replace("\\\n", " ").splitlines():
            words = shlex.split(line.strip(), comments=True)
            if words[:2] == ["$", "holdfast"] and " ".join(words[2:]).startswith(RUN_COMMANDS):
                yield words[2:]


def test_the_commands_that_look_at_a_database_run(database_url: str) -> None:
    commands = list(_commands())
    assert len(commands) >= 7
    for words in commands:
        done = run_command(*words, database_url=database_url)
        assert done.returncode == 0, (words, done.stderr)


def test_a_block_that_is_not_run_is_in_a_document_and_has_a_reason() -> None:
    every = [block for page in BLOCKS.values() for block in page if block.kind in ("sh", "sql", "python")]
    lines = {block.text.strip().partition("\n")[0] for block in every}
    assert NOT_RUN.keys() <= lines
    assert all(NOT_RUN.values())
