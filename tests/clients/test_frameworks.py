"""Frameworks and agents of other people, each in an environment of its own, asked the same cases.

`make clients` installs them. What a client has no word for, its script leaves out.
"""

import json

import pytest

from tests.acceptance.test_keys import make_key
from tests.clients.frameworks.cases import EXPECTED
from tests.clients.test_clients import ANSWERS, CLIENTS, HERE, call, needs, run
from tests.fix_server import StartServer
from tests.support.server_process import MODEL

FRAMEWORKS = {
    "pydantic_ai": {"responses": 9, "chat": 9},
    "instructor": {
        "chat, TOOLS": 5,
        "chat, TOOLS_STRICT": 5,
        "chat, JSON": 5,
        "chat, JSON_SCHEMA": 5,
        "responses, RESPONSES_TOOLS": 5,
    },
    "langgraph": {"chat": 9, "responses": 9, "previous": 9},
    "llama_index": {"chat": 9, "responses": 9, "text": 5},
    "haystack": {"chat": 9, "responses": 9},
    "dspy": {"chat": 6, "responses": 6, "text": 5},
    "smolagents": {"chat": 9},
    "strands": {"chat": 9, "responses": 9, "stateful": 9},
    "inspect_ai": {"chat": 8, "responses": 8},
    "lm_eval": {"chat": 5, "text": 5},
    "semantic_kernel": {"chat": 8, "responses": 8, "text": 4},
}
"""By the name of the script: how many cases it has of each API."""

WEATHER = {"city": "Oslo", "degrees": 7}
MORE_ANSWERS = [
    ("oracle. Conclude with final_answer!", call("final_answer", answer="Both are sunny.")),
    *((f"Call {name}!", call(name, **WEATHER)) for name in ("tell_weather", "Weather", "PartialWeather")),
]


Server = tuple[str, str, str]
"""What a script is run with: the API's address, the model and a key."""


@pytest.fixture
def server(start_server: StartServer, database_url: str) -> Server:
    api = start_server(scripted_answers=json.dumps([*MORE_ANSWERS, *ANSWERS])).api
    return api, MODEL, make_key(database_url).text


def check(printed: str, cases: dict[str, int]) -> None:
    """Each case has the value that it must have, and as many are there of each API."""
    told = json.loads(printed.splitlines()[-1])
    wrong = [
        f"{api}, {case}: {value}"
        for api, cases in told.items()
        for case, value in cases.items()
        if value != EXPECTED[case]
    ]
    assert not wrong, "\n".join(wrong)
    assert {api: len(told[api]) for api in told} == cases


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=needs(CLIENTS / name / "bin" / "python")) for name in FRAMEWORKS]
)
def test_a_framework_gets_of_each_api_what_it_expects(name: str, server: Server) -> None:
    script = HERE / "frameworks" / f"with_{name}.py"
    check(
        run(CLIENTS / name / "bin" / "python", script, *server, LITELLM_LOCAL_MODEL_COST_MAP="True"),
        FRAMEWORKS[name],
    )


@needs(CLIENTS / "node_modules" / "@openai" / "agents")
def test_openais_agents_for_node_get_of_each_api_what_they_expect(server: Server) -> None:
    script = CLIENTS / "agents_node.mjs"
    script.write_text((HERE / "agents_node.mjs").read_text())
    check(run("node", script, *server), {"responses": 9, "chat": 9, "conversation": 1})
