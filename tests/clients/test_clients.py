"""Other people's clients, as they are, against a server whose model says what a test wants it to say.

They live in `.clients`, where `make clients` puts them; without them these tests are skipped.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.fix_server import StartServer
from tests.support.server_process import MODEL, PATIENCE_S, REPOSITORY

CLIENTS = REPOSITORY / ".clients"
CODEX = CLIENTS / "node_modules" / ".bin" / "codex"
AGENTS = CLIENTS / "agents" / "bin" / "python"
PYTHONS = [CLIENTS / f"openai-{release}" / "bin" / "python" for release in ("1.109.1", "2.8.0", "3.57.0")]
LITELLM = CLIENTS / "litellm" / "bin" / "python"
LANGCHAIN = CLIENTS / "langchain" / "bin" / "python"
HERE = Path(__file__).parent


def call(name: str, **arguments: object) -> str:
    """A tool call as the demo model writes it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


ANSWERS = [
    ("Say hello again.", "Hello again."),
    ("Say hello.", "Hello there."),
    ("says the oracle", "Both are sunny."),
    ("Oslo and Rome?", call("get_weather", city="Oslo") + "\n" + call("get_weather", city="Rome")),
    ("You speak Spanish.", "Hola."),
    ("A Spaniard is here.", call("transfer_to_spanish")),
    ("Typed weather!", '{"city": "Oslo", "degrees": 7}'),
    ("Xylophone-7", "It said what it should."),
    ("Run the command.", call("exec_command", cmd="echo Xylophone-$((3+4))")),
]
"""To the first text of these that is in the prompt."""


def needs(path: Path) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not path.exists(), reason="`make clients` installs it")


@pytest.fixture
def api(start_server: StartServer) -> str:
    """The address of a server that gives these answers."""
    return start_server(scripted_answers=json.dumps(ANSWERS)).api


def run(*command: str | Path, **more: str) -> str:
    """What the command prints; it must succeed."""
    done = subprocess.run(
        [str(word) for word in command],
        env={**os.environ, **more},
        cwd=CLIENTS,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def run_script(name: str, api: str) -> Any:
    """What a script of Node prints; it finds its packages beside where it lies."""
    script = CLIENTS / name
    script.write_text((HERE / name).read_text())
    return json.loads(run("node", script, api, MODEL))


@needs(CODEX)
@pytest.mark.parametrize("websockets", [False, True], ids=["http", "websocket"])
def test_codex_completes_a_turn_with_a_tool_call(
    api: str, database_url: str, tmp_path: Path, websockets: bool
) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    (home / "config.toml").write_text(
        f"""
        model = "{MODEL}"
        model_provider = "holdfast"
        [model_providers.holdfast]
        name = "Holdfast"
        base_url = "{api}"
        wire_api = "responses"
        supports_websockets = {str(websockets).lower()}
        request_max_retries = 0
        stream_max_retries = 0
        [model_providers.holdfast.auth]
        command = "echo"
        args = ["a-key"]
        """
    )
    flags = ["--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    printed = run(CODEX, "exec", *flags, "-C", work, "Run the command.", CODEX_HOME=str(home))
    told = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    items = [line["item"] for line in told if line["type"] == "item.completed"]
    assert [item for item in items if item["type"] == "error"] == []  # one says that no metadata was found
    (command,) = [item for item in items if item["type"] == "command_execution"]
    (message,) = [item for item in items if item["type"] == "agent_message"]
    assert (command["aggregated_output"], command["exit_code"]) == ("Xylophone-7\n", 0)
    assert message["text"] == "It said what it should."
    assert told[-1]["type"] == "turn.completed"
    with psycopg.connect(database_url) as connection:  # only over a WebSocket are prompts sent ahead
        sent_ahead = connection.execute("select 1 from usage_ledger where output_tokens = 0").fetchall()
    assert bool(sent_ahead) is websockets


@needs(AGENTS)
def test_agents_of_openais_sdk_reach_their_ends(api: str) -> None:
    both = ["Oslo", "Rome"]
    assert json.loads(run(AGENTS, HERE / "agents_sdk.py", api, MODEL)) == {
        "parallel": ["Both are sunny.", both],
        "streamed": ["Both are sunny.", both, True],
        "handoff": ["Hola.", "Spanish"],
        "typed": {"city": "Oslo", "degrees": 7},
        "replayed": "Hello again.",
        "session": [["Hello there.", "Hello again."], ["user", "assistant"] * 2, "assistant", 3],
        "websocket": ["response.created", "response.completed"],
    }


@pytest.mark.parametrize(
    "python", [pytest.param(python, marks=needs(python), id=python.parts[-3]) for python in PYTHONS]
)
def test_openai_python_of_every_major_release_accumulates_and_resumes(api: str, python: Path) -> None:
    told = json.loads(run(python, HERE / "openai_python.py", api, MODEL))
    calls = [["function_call", json.dumps({"city": city})] for city in ("Oslo", "Rome")]
    outputs = {
        "said": [["message", "Hello there."]],
        "called": calls,
        "typed": [["message", '{"city": "Oslo", "degrees": 7}']],
    }
    assert {name: found["output"] for name, found in told.items()} == outputs
    for found in told.values():
        assert found["deltas"] == "".join(text for _, text in found["output"])
        assert found["same"]
        assert found["numbers"]


@needs(CLIENTS / "node_modules" / "openai")
def test_openai_node_accumulates_what_it_can_retrieve(api: str) -> None:
    told = run_script("openai_node.mjs", api)
    said, called = told["said"], told["called"]
    assert said["deltas"] == said["text"] == said["kept"] == "Hello there."
    assert [json.loads(item["arguments"])["city"] for item in called["output"]] == ["Oslo", "Rome"]
    assert called["deltas"] == "".join(item["arguments"] for item in called["output"])
    assert told["events"] == list(range(4, 4 + len(told["events"])))
    assert told["events"]


@needs(CLIENTS / "node_modules" / "openai")
def test_openai_node_chats_runs_tools_and_finds_what_it_stored(api: str) -> None:
    assert run_script("openai_node_chat.mjs", api) == {
        "whole": ["Hello there."] * 2,
        "kept": ["Hello there."] * 2,
        "streamed": ["Hello there.", "Hello there.", True],
        "answered": "Both are sunny.",
        "given": ["Say hello."],
        "deleted": True,
        "text": ["Hello there."] * 2,
    }


CITIES = [{"city": "Oslo"}, {"city": "Rome"}]


@needs(LITELLM)
def test_litellms_adapters_work_with_all_three_apis(api: str) -> None:
    told = run(LITELLM, HERE / "litellm_sdk.py", api, MODEL, LITELLM_LOCAL_MODEL_COST_MAP="True")
    assert json.loads(told.splitlines()[-1]) == {
        "whole": ["Hello there."] * 2,
        "streamed": "Hello there.",
        "called": CITIES,
        "answered": "Both are sunny.",
        "response": "Hello there.",
        "events": ["response.created", "response.completed"],
        "text": "Hello there.",
    }


@needs(LANGCHAIN)
def test_langchains_adapters_work_with_all_three_apis(api: str) -> None:
    expected = {
        "whole": "Hello there.",
        "streamed": "Hello there.",
        "called": CITIES,
        "answered": "Both are sunny.",
        "typed": {"city": "Oslo", "degrees": 7},
        "counted": True,
    }
    assert json.loads(run(LANGCHAIN, HERE / "langchain_sdk.py", api, MODEL)) == {
        "chat": expected,
        "responses": expected,
        "text": ["Hello there."] * 2,
    }


@needs(CLIENTS / "node_modules" / "@ai-sdk" / "openai")
@needs(CLIENTS / "node_modules" / "@ai-sdk" / "open-responses")
def test_both_providers_of_the_ai_sdk_call_tools_and_go_on(api: str) -> None:
    expected = {
        "whole": "Both are sunny.",
        "steps": 2,
        "streamed": "Both are sunny.",
        "next": "Hello there.",
    }
    assert run_script("ai_sdk.mjs", api) == {"openai": expected, "open": expected}
