"""The blocks of docs/clients.md, in the clients that `make clients` installs; of others they are skipped.

A section's Python is one program, and so are its JavaScript and its shell commands, after its files were
written where the prose before them says. Each must print what the plain blocks behind it show.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.test_readme import at
from tests.clients.test_clients import CLIENTS, call, needs
from tests.fix_server import StartServer, running
from tests.support.documents import ROOT
from tests.support.server_process import PATIENCE_S, ServerProcess, free_port

NODE = CLIENTS / "node_modules"
RUNS_WITH: dict[str, Path] = {
    "curl": Path(shutil.which("jq") or "jq"),
    "OpenAI's SDK for Python": CLIENTS / "openai-3.57.0" / "bin" / "python",
    "OpenAI's SDK for Node": NODE / "openai",
    "Agents SDK for Python": CLIENTS / "agents" / "bin" / "python",
    "Agents SDK for Node": NODE / "@openai" / "agents",
    "Vercel's AI SDK": NODE / "@ai-sdk" / "openai",
    "LangChain and LangGraph": CLIENTS / "langgraph" / "bin" / "python",
    "Pydantic AI": CLIENTS / "pydantic_ai" / "bin" / "python",
    "LiteLLM": CLIENTS / "litellm" / "bin" / "python",
    "Codex": NODE / ".bin" / "codex",
    "opencode": NODE / ".bin" / "opencode",
    "Qwen Code": NODE / ".bin" / "qwen",
    "Claude Code": NODE / ".bin" / "claude",
    "Continue": NODE / ".bin" / "cn",
}
"""What must be there for a section to run."""
COMMAND = "seq -s- 5"
AGENTS = {
    "Codex": call("exec_command", cmd=COMMAND),
    "opencode": call("bash", command=COMMAND, description="Count"),
    "Qwen Code": call("run_shell_command", command=COMMAND, is_background=False),
    "Claude Code": call("Bash", command=COMMAND, description="Count"),
    "Continue": call("Bash", command=COMMAND),
}
"""The call that an agent is to be answered with: most have prompts that the demo model cannot read."""
FILES = ("toml", "json", "yaml")
RUNNERS = ("python", "js", "sh")
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"`([\w.~/-]+\.(?:toml|json|yaml))`")
_PAGE = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
SECTIONS = {section.partition("\n")[0]: section for section in _PAGE.split("\n## ")[1:] if "```" in section}


@pytest.fixture(scope="module")
def demo(module_database: str) -> Iterator[ServerProcess]:
    yield from running(module_database, {"torch_threads": 1})


class Shell:
    """Runs programs in a home of their own, which sees nothing of this process's environment."""

    def __init__(self, home: Path, server: ServerProcess) -> None:
        self.home, self._server = home, server
        self._proxy = str(free_port())

    def written(self, text: str) -> str:
        """The block with the test's addresses in the place of the page's."""
        return (
            at(self._server, text)
            .replace("127.0.0.1:4000", f"127.0.0.1:{self._proxy}")
            .replace("--port 4000", f"--port {self._proxy}")
        )

    def write(self, path: str, text: str) -> None:
        file = self.home / path.removeprefix("~/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(self.written(text))

    def run(self, *command: str) -> str:
        folders = [NODE / ".bin", CLIENTS / "litellm" / "bin", os.environ["PATH"]]
        environment = {"HOME": str(self.home), "PATH": ":".join(map(str, folders)), "LANG": "C.UTF-8"}
        process = subprocess.Popen(
            command,
            env={**environment, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            printed, errors = process.communicate(timeout=PATIENCE_S)
        finally:
            with contextlib.suppress(ProcessLookupError):  # of a group that has ended
                os.killpg(process.pid, signal.SIGKILL)
        assert process.returncode == 0, f"{printed[-1500:]}\n{errors[-3000:]}"
        return printed


def programs(section: str) -> Iterator[tuple[str, str, str]]:
    """Of each kind of program: the kind, its text, and what it prints; files come before programs."""
    texts: dict[str, str] = {}
    prints: dict[str, str] = {}
    kind = ""
    for block_kind, text in _BLOCK.findall(section):
        if block_kind:
            kind = block_kind
            texts[kind] = texts.get(kind, "") + text
        else:
            prints[kind] = prints.get(kind, "") + text
    for kind in RUNNERS:
        if kind in texts:
            yield kind, texts[kind], prints[kind]


def check(name: str, shell: Shell) -> None:
    """Writes the section's files, and runs its programs."""
    section = SECTIONS[name]
    for block in _BLOCK.finditer(section):
        if block[1] in FILES:
            shell.write(_FILE.findall(section[: block.start()])[-1], block[2])
    for kind, text, prints in programs(section):
        script = shell.home / f"script.{kind}"
        if kind == "js":  # Node looks for packages beside the script
            script = CLIENTS / f"page-{re.sub(r'[^a-z]+', '-', name.lower())}.mjs"
        script.write_text(shell.written(text))
        runner = {"python": str(RUNS_WITH[name]), "js": "node", "sh": "bash"}[kind]
        assert shell.run(runner, str(script)).strip() == prints.strip()


def test_every_block_of_the_page_is_run() -> None:
    assert RUNS_WITH.keys() == SECTIONS.keys()
    kinds = {kind for kind, _ in _BLOCK.findall(_PAGE)}
    assert kinds == {"", *FILES, *RUNNERS}
    assert [name for name, section in SECTIONS.items() if not list(programs(section))] == []


@pytest.mark.parametrize("name", [pytest.param(name, marks=needs(RUNS_WITH[name])) for name in SECTIONS])
def test_the_blocks_of_a_client_print_what_the_page_shows(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if name in AGENTS:
        answers = [
            ("Say hello again.", "Hello again."),
            ("1-2-3-4-5", "It printed 1-2-3-4-5."),
            (COMMAND, AGENTS[name]),
        ]
        start: StartServer = request.getfixturevalue("start_server")
        server = start(scripted_answers=json.dumps(answers))
    else:
        server = request.getfixturevalue("demo")
    check(name, Shell(tmp_path, server))
