"""Forced calls over HTTP with the demo model: legal though not strict; no markup is shown of cut ones."""

import json
from typing import Any

import httpx
import pytest

from tests.support.server_process import MODEL, ServerProcess
from tests.support.sse import create

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "n": {"type": "integer", "minimum": 0, "maximum": 9},
        "o": {"anyOf": [{"type": "string", "maxLength": 8}, {"type": "null"}]},
    },
    "required": ["n"],
    "additionalProperties": False,
}
CHOICES: list[Any] = [
    "required",
    {"type": "function", "name": "f"},
    {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]},
]
TOOL = {"type": "function", "name": "f", "parameters": SCHEMA, "strict": False}
CUT = {"model": MODEL, "input": "Go on.", "tools": [TOOL], "tool_choice": "required", "max_output_tokens": 6}


@pytest.mark.parametrize("choice", CHOICES, ids=["required", "named", "allowed"])
def test_a_forced_call_that_is_not_strict_is_legal(demo_server: ServerProcess, choice: Any) -> None:
    body = {"model": MODEL, "input": "Go on.", "tools": [TOOL], "tool_choice": choice, "temperature": 1}
    answer = httpx.post(f"{demo_server.api}/responses", json=body | {"max_output_tokens": 300}, timeout=60)
    calls = [item for item in answer.json()["output"] if item["type"] == "function_call"]
    assert calls, answer.text
    for call in calls:
        if call["status"] == "completed":
            arguments = json.loads(call["arguments"])
            assert 0 <= arguments["n"] <= 9
            assert arguments.keys() <= {"n", "o"}
            assert arguments.get("o") is None or len(arguments["o"]) <= 8


def test_a_forced_call_that_is_cut_shows_no_markup(demo_server: ServerProcess) -> None:
    whole = httpx.post(f"{demo_server.api}/responses", json=CUT, timeout=60).json()
    assert whole["status"] == "incomplete"
    assert all(item["type"] == "function_call" for item in whole["output"]), whole["output"]
    with create(demo_server.url, CUT) as stream:
        kinds = [frame.event for frame in stream]
    assert kinds[-1] == "response.incomplete"
    assert "response.output_text.delta" not in kinds


def test_a_forced_call_of_a_chat_that_is_cut_shows_no_markup(demo_server: ServerProcess) -> None:
    function = {"name": "f", "parameters": SCHEMA}
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Go on."}],
        "tools": [{"type": "function", "function": function}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "max_tokens": 6,
    }
    (choice,) = httpx.post(f"{demo_server.api}/chat/completions", json=body, timeout=60).json()["choices"]
    assert choice["finish_reason"] == "length"
    assert not choice["message"]["content"]
    streamed = httpx.post(
        f"{demo_server.api}/chat/completions", json=body | {"stream": True}, timeout=60
    ).text
    assert "tool_call>" not in streamed
