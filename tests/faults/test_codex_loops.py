"""F50: Codex itself in loops of commands, over its WebSocket, while its server and Postgres die."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.acceptance.test_code_runner import tool_call
from tests.clients.test_clients import CODEX, needs
from tests.faults.test_long_agents import DEATHS, SETTINGS, STEPS, TASK, WORDS, Deaths
from tests.fix_tally import Tally
from tests.support.powered_server import PoweredServer
from tests.support.server_process import MODEL

pytestmark = [pytest.mark.faults, needs(CODEX)]

END = "It is the end."
SUMMARY = "CONTEXT CHECKPOINT COMPACTION"
"""Words of the prompt by which Codex has a summary written."""
STEP = """#!/bin/sh
n=$(wc -l < walked)
echo "$1" >> walked
printf 'result %03d: {words}\\n' "$n"
[ "$n" -lt {last} ] || echo '{end}'
"""
CONFIG = """
model = "{model}"
model_provider = "holdfast"
[model_providers.holdfast]
name = "Holdfast"
base_url = "{api}"
wire_api = "responses"
supports_websockets = true
stream_max_retries = 100
request_max_retries = 100
[model_providers.holdfast.auth]
command = "echo"
args = ["a-key"]
"""
FLAGS = ("--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")


def numbered_answers() -> str:
    """Calls with the number after that of the newest result: where one is lost, its command is run twice."""
    said = [tool_call("exec_command", cmd=f"./step {number}") for number in range(STEPS)]
    pairs = [(f"result {number:03}:", call) for number, call in enumerate([*said[1:], "I am there."])]
    return json.dumps([*reversed(pairs), (TASK, said[0])])


def same_answers() -> str:
    """Calls the same again until the end is reached, also when nothing but a summary is left."""
    call = tool_call("exec_command", cmd="./step again")
    return json.dumps([(SUMMARY, "So far, so good."), (END, "I am there."), (TASK, call)])


class Loop:
    """One `codex exec`, its events, and what its commands wrote."""

    def __init__(self, folder: Path, powered: PoweredServer, words: str) -> None:
        self._home, self._work = folder / "home", folder / "work"
        self._home.mkdir()
        self._work.mkdir()
        (self._home / "config.toml").write_text(CONFIG.format(model=MODEL, api=powered.process.api))
        step = self._work / "step"
        step.write_text(STEP.format(words=words, last=STEPS - 1, end=END))
        step.chmod(0o755)
        self._walked = self._work / "walked"
        self._walked.touch()
        self.items: list[dict[str, object]] = []

    def run(self, deaths: Deaths) -> None:
        """Runs to the end; each result of a command may be followed by a death."""
        with (
            (self._home / "errors").open("w+") as errors,
            subprocess.Popen(
                [CODEX, "exec", *FLAGS, "-C", self._work, TASK],
                env={**os.environ, "CODEX_HOME": str(self._home)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            ) as process,
        ):
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    told = json.loads(line)
                    if told["type"] == "item.completed":
                        self.items.append(told["item"])
                        deaths.reached(len(self.commands))
                deaths.finish()
                assert process.wait(60) == 0, (
                    f"{(self._home / 'errors').read_text()[-2000:]} {self.items[-1:]}"
                )
            finally:
                process.kill()

    @property
    def commands(self) -> list[dict[str, object]]:
        return [item for item in self.items if item["type"] == "command_execution"]

    @property
    def compactions(self) -> int:
        logs = [path.read_text() for path in self._home.glob("sessions/**/*.jsonl")]
        return sum(json.loads(line)["type"] == "compacted" for log in logs for line in log.splitlines())

    @property
    def walked(self) -> list[str]:
        return self._walked.read_text().split()


def test_codex_runs_each_command_once_while_its_server_dies(
    made_dir: Path, tmp_path: Path, tally: Tally
) -> None:
    settings = {**SETTINGS, "scripted_context_length": 32768, "scripted_answers": numbered_answers()}
    with PoweredServer(made_dir, **settings) as powered:
        loop, deaths = Loop(tmp_path, powered, words=""), Deaths(powered)
        loop.run(deaths)
    assert loop.items[-1]["text"] == "I am there."
    assert loop.walked == [str(number) for number in range(STEPS)]
    assert len(loop.commands) == STEPS
    assert deaths.count == DEATHS
    tally["F50", "deaths of a server under Codex"] += deaths.count


def test_codex_compacts_8k_tokens_again_and_again_while_its_server_dies(
    made_dir: Path, tmp_path: Path, tally: Tally
) -> None:
    with PoweredServer(made_dir, **SETTINGS, scripted_answers=same_answers()) as powered:
        loop, deaths = Loop(tmp_path, powered, WORDS), Deaths(powered)
        loop.run(deaths)
    assert loop.items[-1]["text"] == "I am there."
    steps = len(loop.walked)
    assert STEPS <= steps <= STEPS + 1  # the end may be compacted before it is read
    numbers = [str(item["aggregated_output"]).partition(":")[0] for item in loop.commands]
    assert numbers == [f"result {number:03}" for number in range(steps)]
    assert loop.compactions >= STEPS // 10
    assert deaths.count == DEATHS
    tally["F50", "deaths of a server under Codex"] += deaths.count
    tally["F50", "compactions by Codex"] += loop.compactions
