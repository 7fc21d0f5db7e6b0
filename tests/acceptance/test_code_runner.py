"""The code runner as it is started and asked: a process of its own, over MCP."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import httpx
import pytest
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult, TextContent, Tool

from tests.acceptance.error_object import check_error
from tests.acceptance.sdk_types import check_goes_on
from tests.fix_server import StartServer
from tests.support.eventually import eventually
from tests.support.sandboxes import need_sandboxes
from tests.support.server_process import MODEL, REPOSITORY, free_port
from tests.support.sse import create, replay
from tool_servers.runner.sandbox import process_tree

T = TypeVar("T")
OPTIONS = ["--seconds", "6", "--memory-mb", "192", "--processes", "32", "--sessions", "4"]


class Runner:
    """One runner process."""

    def __init__(self, *options: str) -> None:
        self.port = free_port()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tool_servers.runner", "--port", str(self.port), *OPTIONS, *options],
            cwd=REPOSITORY,
        )
        eventually(self.is_healthy, within=30)

    def is_healthy(self) -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}/health", timeout=5).text == "ok"
        except httpx.HTTPError:
            return False

    def tools(self) -> list[Tool]:
        async def ask(client: ClientSession) -> list[Tool]:
            return (await client.list_tools()).tools

        return asyncio.run(self._exchange({}, ask))

    def call(self, session: str | None, tool: str, **arguments: object) -> CallToolResult:
        async def ask(client: ClientSession) -> CallToolResult:
            return await client.call_tool(tool, arguments)

        return asyncio.run(self._exchange({} if session is None else {"x-session-id": session}, ask))

    def says(self, code: str, session: str | None = None) -> str:
        return self.tells(session, "python", code=code)

    def tells(self, session: str | None, tool: str, **arguments: object) -> str:
        told = self.call(session, tool, **arguments)
        assert not told.isError, told
        assert isinstance(told.content[0], TextContent)
        return told.content[0].text

    async def _exchange(self, headers: dict[str, str], ask: Callable[[ClientSession], Awaitable[T]]) -> T:
        async with (
            httpx.AsyncClient(headers=headers, timeout=30) as http,
            streamable_http_client(f"http://127.0.0.1:{self.port}/mcp", http_client=http) as (read, write, _),
            ClientSession(read, write) as client,
        ):
            await client.initialize()
            return await ask(client)


@contextmanager
def running_runner(*options: str) -> Iterator[Runner]:
    need_sandboxes()
    runner = Runner(*options)
    try:
        yield runner
    finally:
        runner.process.terminate()
        assert runner.process.wait(30) is not None


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with running_runner() as opened:
        yield opened


def test_tools_are_offered_as_gpt_oss_knows_them(runner: Runner) -> None:
    python, execute, shell = runner.tools()
    assert python.name == "python"
    assert list(python.inputSchema["properties"]) == python.inputSchema["required"] == ["code"]
    assert execute.name == "exec"
    assert list(execute.inputSchema["properties"]) == ["cmd", "workdir", "env", "timeout"]
    assert execute.inputSchema["required"] == ["cmd"]
    assert shell.name == "shell"
    assert list(shell.inputSchema["properties"]) == ["commands", "timeout_ms", "max_output_length"]


def test_commands_of_a_shell_are_told_one_by_one(runner: Runner) -> None:
    commands = ["cd /tmp; echo out; echo err >&2; exit 3", "pwd", "kill -9 $$"]
    told = json.loads(runner.tells("told", "shell", commands=commands))
    assert told == [
        {"stdout": "out\n", "stderr": "err\n", "outcome": {"type": "exit", "exit_code": 3}},
        {"stdout": "/mnt/data\n", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}},
        {"stdout": "", "stderr": "", "outcome": {"type": "exit", "exit_code": 137}},
    ]


def test_commands_that_do_not_end_are_stopped_and_the_files_stay(runner: Runner) -> None:
    commands = ["echo six > a.txt; echo begun; sleep 99", "echo late"]
    first, second = json.loads(runner.tells("slow", "shell", commands=commands, timeout_ms=2000))
    assert (first["stdout"], first["outcome"]) == ("begun\n", {"type": "timeout"})
    assert (second["stdout"], second["outcome"]) == ("", {"type": "timeout"})
    (after,) = json.loads(runner.tells("slow", "shell", commands=["cat a.txt"]))
    assert after["stdout"] == "six\n"


@pytest.mark.parametrize("most", [None, 100])
def test_output_of_commands_is_cut_in_its_middle_and_is_still_json(runner: Runner, most: int | None) -> None:
    commands = ["head -c 300000 /dev/urandom; echo end", "yes | head -c 300000; echo end >&2"]
    told = json.loads(runner.tells("long", "shell", commands=commands, max_output_length=most))
    assert len(json.dumps(told)) <= 65536
    assert told[0]["stdout"].endswith("end\n")
    assert "bytes were left out" in told[1]["stdout"]
    assert told[1]["stdout"].startswith("y\ny\n")
    assert told[1]["stderr"] == "end\n"


def test_commands_and_code_of_one_session_share_its_files(runner: Runner) -> None:
    runner.says("open('a.txt', 'w').write('six')", "files")
    assert runner.tells("files", "exec", cmd=["cat", "a.txt"]) == "six"
    assert "No such file" in runner.tells("other", "exec", cmd=["cat", "a.txt"])


@pytest.mark.parametrize(
    "arguments",
    [{}, {"cmd": []}, {"cmd": "ls"}, {"cmd": ["ls"], "timeout": 0}, {"cmd": ["ls"], "env": {"A": 1}}],
)
def test_what_is_no_command_is_an_error_for_the_model(runner: Runner, arguments: dict[str, object]) -> None:
    assert runner.call("wrong", "exec", **arguments).isError


def test_code_of_one_session_shares_its_names_and_others_have_their_own(runner: Runner) -> None:
    assert runner.says("x = 6", "one") == ""
    assert runner.says("x * 7", "one") == "42\n"
    assert "NameError" in runner.says("x", "two")
    assert "NameError" in runner.says("x")


def test_a_sandbox_that_ended_is_told_to_the_model(runner: Runner) -> None:
    told = runner.says("print('so far'); import os; os._exit(0)", "one")
    assert told == "so far\n[The interpreter ended. Its variables and files are gone.]"


def tool_call(name: str, **arguments: object) -> str:
    """As the demo model writes it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


ATTACKS = {
    "fork bomb": """
import os
while True:
    try: os.fork()
    except OSError: pass
""",
    "memory bomb": """
import mmap
m = []
while True:
    m.append(mmap.mmap(-1, 10**7))
    m[-1].write(bytes(10**7))
""",
    "a gigabyte of output": """
import os
for _ in range(1000): os.write(1, b'x' * 10**6)
""",
    "endless loop": """
import signal
signal.signal(14, signal.SIG_IGN)
while True: pass
""",
    "files without end": """
import itertools
for n in itertools.count(): open(f'/tmp/{n}', 'w')
""",
    "killing": """
import os
for pid in range(1, 100000):
    if pid != os.getpid():
        try: os.kill(pid, 9)
        except OSError: pass
""",
    "every pipe": """
import os
for fd in range(3, 20):
    try: os.write(fd, b'.' * 10**6)
    except OSError: pass
""",
}


def test_no_attack_takes_the_runner_or_another_session_along() -> None:
    with running_runner("--sessions", "16", "--seconds", "1") as runner:
        assert runner.says("kept = 1", "bystander") == ""
        attackers = [
            threading.Thread(target=runner.says, args=[code, kind]) for kind, code in ATTACKS.items()
        ]
        for attacker in attackers:
            attacker.start()
        while any(attacker.is_alive() for attacker in attackers):
            assert runner.is_healthy()
            assert runner.says("kept", "bystander") == "1\n"
        assert runner.says("kept", "bystander") == "1\n"
        assert runner.says("6 * 7", "newcomer") == "42\n"


def test_command_is_run_by_vllms_label_of_a_container(runner: Runner, start_server: StartServer) -> None:
    call = tool_call("exec", cmd=["sh", "-c", "echo $((6 * 7))"])
    server = start_server(
        scripted_answers=json.dumps([("42", "It is 42."), ("Reckon", call)]),
        tool_server=f"container=http://127.0.0.1:{runner.port}/mcp",
    )
    container = {
        "type": "mcp",
        "server_label": "container",
        "server_url": "http://localhost:8888/container",
        "require_approval": "never",
    }
    body = {"model": MODEL, "input": "Reckon", "tools": [container]}
    told = httpx.post(f"{server.api}/responses", json=body, timeout=60).json()
    (made,) = (item for item in told["output"] if item["type"] == "mcp_call")
    assert (made["name"], made["output"]) == ("exec", "42\n")
    assert told["output"][-1]["content"][0]["text"] == "It is 42."
    nowhere = {**body, "tools": [{**container, "server_url": 8888}]}
    refused = httpx.post(f"{server.api}/responses", json=nowhere, timeout=60)
    error = check_error(refused, 400, "invalid_request_error")
    assert error["param"] == "tools[0].server_url"


def test_response_that_uses_mcp_and_code_is_finished_though_its_server_is_killed_during_a_call(
    runner: Runner, start_server: StartServer
) -> None:
    answers = [
        ("Thank you", "Welcome."),
        ("It is not known", "I cannot tell."),
        ("It is 42", tool_call("python__python", code="import subprocess; subprocess.run(['sleep', '1.5'])")),
        ("Kept.", tool_call("python__python", code="print('It is', x * 7)")),
        ("Compute", tool_call("notes__python", code="x = 6; print('Kept.')")),
    ]
    url = f"http://127.0.0.1:{runner.port}/mcp"
    server = start_server(scripted_answers=json.dumps(answers), tool_server=f"notes={url},python={url}")
    tools = [
        {"type": "mcp", "server_label": "notes", "require_approval": "never"},
        {"type": "code_interpreter", "container": {"type": "auto"}},
    ]
    body = {"model": MODEL, "input": "Compute it.", "tools": tools, "background": True}
    seen = []
    with create(server.url, body) as stream:
        for frame in stream:
            seen.append(frame)
            if [one.event for one in seen].count("response.code_interpreter_call.interpreting") == 2:
                break
        eventually(lambda: "sleep" in names(process_tree(runner.process.pid)))
        server.restart()
    with replay(server.url, seen[0].json["response"]["id"]) as stream:
        frames = list(stream)
    check_goes_on(seen, frames)
    told = frames[-1].json["response"]
    assert told["status"] == "completed"
    listed, note, code, killed, message = told["output"]
    assert (listed["type"], note["type"], note["output"]) == ("mcp_list_tools", "mcp_call", "Kept.\n")
    assert (code["type"], code["code"]) == ("code_interpreter_call", "print('It is', x * 7)")
    assert code["outputs"] == [{"type": "logs", "logs": "It is 42\n"}]
    assert (killed["type"], killed["status"]) == ("code_interpreter_call", "failed")
    assert "It is not known" in killed["outputs"][0]["logs"]
    assert message["content"][0]["text"] == "I cannot tell."
    later = {"model": MODEL, "input": "Thank you", "previous_response_id": told["id"]}
    told = httpx.post(f"{server.api}/responses", json=later, timeout=60).json()
    assert told["output"][0]["content"][0]["text"] == "Welcome."


def names(pids: list[int]) -> list[str]:
    """What those processes run that are still there."""
    found = [Path(f"/proc/{pid}/comm") for pid in pids]
    return [file.read_text().strip() for file in found if file.exists()]


def test_a_fifth_session_takes_the_place_of_the_one_that_was_unused_for_longest() -> None:
    with running_runner() as runner:  # nobody else's sessions are there, nor code that still runs
        for name in "abcde":
            assert "Error" not in runner.says(f"here = {name!r}", name)
        assert runner.says("here", "b") == "'b'\n"
        assert "NameError" in runner.says("here", "a")


def test_a_runner_that_is_killed_takes_its_sandboxes_along() -> None:
    need_sandboxes()
    runner = Runner()
    runner.says("import subprocess; p = subprocess.Popen(['sleep', '99'])", "one")
    family = process_tree(runner.process.pid)
    assert len(family) >= 4
    runner.process.send_signal(signal.SIGKILL)
    runner.process.wait()
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in family[1:]))


def test_another_sites_name_for_loopback_is_not_answered(runner: Runner) -> None:
    answer = httpx.post(
        f"http://127.0.0.1:{runner.port}/mcp",
        headers={"host": "rebound.example", "accept": "application/json, text/event-stream"},
        json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"},
    )
    assert answer.status_code == 421


def test_a_python_that_is_not_there_is_refused_with_a_sentence() -> None:
    told = subprocess.run(
        [sys.executable, "-m", "tool_servers.runner", "--python", "/nowhere/python3"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 1
    assert told.stderr == "holdfast-runner: /nowhere/python3 is no Python that runs.\n"
