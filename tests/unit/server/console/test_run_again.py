"""A stored response's request put together again."""

from typing import Any

import msgspec
import pytest

from server.administration.repeated_request import stored_request
from server.console.pages.run_again import (
    MAX_EDITED_BYTES,
    edited_text,
    read_edited,
    request_body,
)
from server.errors import InvalidRequest
from server.protocol.decode import decode
from server.protocol.responses.request import CreateResponse

ECHO: dict[str, Any] = {
    "background": False,
    "frequency_penalty": 0.0,
    "instructions": "Be short.",
    "max_output_tokens": 10,
    "max_tool_calls": None,
    "metadata": {},
    "model": "m",
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "service_tier": "default",
    "store": True,
    "temperature": 0.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
MCP = {"type": "mcp", "server_label": "x", "server_url": "http://x"}
ITEM = '{"type":"message","role":"user","content":[{"type":"input_text","text":"Hello"}],"id":"msg_1"}'


def rebuilt(asked: dict[str, Any] | None = None, kind: str = "response", **echo: Any) -> Any:
    given = None if asked is None else msgspec.json.encode(asked).decode()
    return stored_request(msgspec.json.encode({**ECHO, **echo}).decode(), given, kind=kind, seed=7)


def test_after_the_end_it_is_what_the_response_repeats_with_the_seed() -> None:
    found = rebuilt()
    assert found.parameters["instructions"] == "Be short."
    assert (found.parameters["seed"], found.parameters["temperature"]) == (7, 0.0)
    assert (
        found.parameters.keys() & {"store", "background", "metadata", "tools", "tool_choice", "user"} == set()
    )
    assert "not stored after its end" in found.notes[0]
    assert found.obstacle == ""


def test_while_it_runs_it_is_what_was_asked() -> None:
    found = rebuilt(
        {"model": "m", "input": "", "top_k": 5, "instructions": None, "choice": 1, "stream": True}
    )
    assert found.parameters == {"model": "m", "top_k": 5, "instructions": "Be short.", "seed": 7}
    assert found.notes == []


@pytest.mark.parametrize(
    ("echo", "kind", "says"),
    [
        ({"tools": [MCP]}, "response", "never stored"),
        ({"conversation": {"id": "conv_1"}}, "response", "not added to the conversation"),
        ({"prompt": {"id": "p"}}, "response", "stored prompt"),
        ({}, "chat", "chat completion"),
        (
            {"tools": [{"type": "mcp", "server_label": "x", "server_url": "http://x"}]},
            "response",
            "never stored",
        ),
    ],
)
def test_it_says_what_is_not_as_it_was(echo: dict[str, Any], kind: str, says: str) -> None:
    found = rebuilt(kind=kind, **echo)
    assert says in found.notes[-1]
    assert found.obstacle == ""
    assert found.parameters.keys() & {"conversation", "prompt"} == set()


@pytest.mark.parametrize(
    ("echo", "kind", "says"),
    [
        ({}, "completion", "legacy completion"),
        ({"tools": [{**MCP, "server_url": "http://x/<redacted>"}]}, "response", "MCP server x"),
    ],
)
def test_it_says_why_it_cannot_be_run_again(echo: dict[str, Any], kind: str, says: str) -> None:
    assert says in rebuilt(kind=kind, **echo).obstacle


def test_its_body_is_a_request_of_the_api_for_the_background() -> None:
    body = request_body(
        rebuilt(tools=[{"type": "function", "name": "f", "parameters": {}}]).parameters, [ITEM]
    )
    request = decode(body, CreateResponse, endpoint="responses")
    assert (request.background, request.store, request.seed) == (True, True, 7)
    assert isinstance(request.input, list)
    assert request.input[0]["role"] == "user"


def test_an_edited_input_replaces_the_stored_one() -> None:
    body = msgspec.json.decode(request_body({"model": "m", "input": "Other"}, [ITEM]))
    assert body["input"] == "Other"


def test_the_form_has_the_input_unless_it_is_too_long() -> None:
    text, has_input = edited_text({"model": "m"}, [ITEM])
    assert has_input
    assert read_edited(text)["input"] == [msgspec.json.decode(ITEM)]
    text, has_input = edited_text({"model": "m"}, [ITEM] * (MAX_EDITED_BYTES // len(ITEM)))
    assert (has_input, read_edited(text)) == (False, {"model": "m"})


@pytest.mark.parametrize("text", ["", "{", "[1]", "3", "[" * 100_000, '{"a": 1e999}', "\ud800"])
def test_what_is_no_object_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(InvalidRequest, match="JSON"):
        read_edited(text)
