"""Every parameter of `docs/api.md`, asked of a server: what works is taken, what is refused is named."""

from typing import Any, get_args

import httpx
import pytest

from server.protocol.parameter_support import ELSEWHERE, TABLES, Endpoint
from tests.support.server_process import MODEL, ServerProcess
from tests.support.websocket import WebSocket

ENDPOINTS: tuple[Endpoint, ...] = get_args(Endpoint)
PATHS: dict[Endpoint, str] = {
    "responses": "/responses",
    "chat": "/chat/completions",
    "completions": "/completions",
}
SAID = [{"role": "user", "content": "Hi"}]
BODIES: dict[Endpoint, dict[str, Any]] = {
    "responses": {"input": "Hi", "max_output_tokens": 4},
    "chat": {"messages": SAID, "max_tokens": 4},
    "completions": {"prompt": "Hi", "max_tokens": 4},
}
FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {}}}
CHAT_TOOLS = [{"type": "function", "function": FUNCTION}]
TOOLS = [{"type": "function", **FUNCTION}]
SCHEMA = {"type": "object"}
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}

VALUES: dict[str, Any] = {
    "background": True,
    "cache_salt": "salt",
    "chat_template_kwargs": {"verbosity": "low"},
    "context_management": [{"type": "compaction", "compact_threshold": 5000}],
    "documents": [],
    "echo": True,
    "expires_after": {"anchor": "created_at", "seconds": 3600},
    "guided_choice": ["yes", "no"],
    "guided_grammar": 'start: "yes" | "no"',
    "guided_json": SCHEMA,
    "guided_json_object": True,
    "guided_regex": "yes|no",
    "ignore_eos": True,
    "include": ["reasoning.encrypted_content"],
    "input": "Hello",
    "instructions": "Be brief.",
    "logit_bias": {"5": 1},
    "messages": SAID,
    "metadata": {"a": "b"},
    "modalities": ["text"],
    "previous_input_messages": SAID,
    "priority": 1,
    "prompt_cache_key": "key",
    "prompt_cache_options": {},
    "background_options": {"completion_window": "soonest"},
    "image": {},
    "reasoning": {"effort": "low"},
    "reasoning_effort": "low",
    "repetition_penalty": 1.1,
    "prediction": {"type": "content", "content": "Hello"},
    "request_id": "mine-1",
    "response_format": FORMAT,
    "safety_identifier": "somebody",
    "seed": 1,
    "service_tier": "auto",
    "allowed_token_ids": [5, 6],
    "bad_words": ["stone"],
    "generation_config": {"top_k": 3},
    "stop": ["#"],
    "stop_token_ids": [5],
    "skip_special_tokens": False,
    "thinking_token_budget": 8,
    "truncate_prompt_tokens": -1,
    "truncation_side": "right",
    "structured_outputs": {"choice": ["yes", "no"]},
    "text": {"verbosity": "low"},
    "truncation": "auto",
    "user": "somebody",
    "verbosity": "low",
    **dict.fromkeys(("temperature", "top_p", "presence_penalty", "frequency_penalty", "min_p"), 0.5),
    "length_penalty": 0.5,
    **dict.fromkeys(("add_generation_prompt", "include_reasoning", "parallel_tool_calls"), False),
    **dict.fromkeys(("n", "top_k", "min_tokens", "prompt_logprobs", "max_tool_calls", "best_of"), 2),
}
"""Examples; of other parameters, one is anything that is not neutral."""
OF_ENDPOINT: dict[tuple[str, str], dict[str, Any]] = {
    ("chat", "stream_options"): {"stream": True, "stream_options": {"include_usage": True}},
    ("completions", "stream_options"): {"stream": True, "stream_options": {"include_usage": True}},
    ("responses", "stream_options"): {"stream": True, "stream_options": {"include_obfuscation": True}},
    ("responses", "tools"): {"tools": TOOLS},
    ("responses", "tool_choice"): {"tools": TOOLS, "tool_choice": "none"},
    ("chat", "tools"): {"tools": CHAT_TOOLS},
    ("chat", "tool_choice"): {"tools": CHAT_TOOLS, "tool_choice": "none"},
    ("chat", "logprobs"): {"logprobs": True},
    ("chat", "top_logprobs"): {"logprobs": True, "top_logprobs": 2},
    ("chat", "max_tokens"): {"max_tokens": 3},
    ("completions", "logprobs"): {"logprobs": 2},
    ("completions", "max_tokens"): {"max_tokens": 3},
    ("completions", "prompt"): {"prompt": "Hello"},
    ("completions", "best_of"): {"n": 2, "best_of": 2},
    ("responses", "logprob_token_ids"): {"top_logprobs": 1, "logprob_token_ids": [5]},
    ("chat", "logprob_token_ids"): {"logprobs": True, "logprob_token_ids": [5]},
    ("completions", "logprob_token_ids"): {"logprobs": 1, "logprob_token_ids": [5]},
    ("responses", "text"): {"text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}}},
    ("responses", "top_logprobs"): {"top_logprobs": 2},
    ("responses", "max_output_tokens"): {"max_output_tokens": 3},
    ("chat", "max_completion_tokens"): {"max_tokens": 3, "max_completion_tokens": 3},
    **{(endpoint, "model"): {"model": MODEL} for endpoint in ENDPOINTS},
    **{
        (endpoint, "continue_final_message"): {
            key: [*SAID, {"role": "assistant", "content": "Hel"}],
            "continue_final_message": True,
        }
        for endpoint, key in (("responses", "input"), ("chat", "messages"))
    },
}


@pytest.fixture(scope="module")
def named(scripted_server: ServerProcess) -> dict[str, Any]:
    """What must be there before a request can name it."""
    with httpx.Client(base_url=scripted_server.api, timeout=60) as http:
        before = http.post("/responses", json={"model": MODEL, "input": "Hi", "max_output_tokens": 2}).json()
        conversation = http.post("/conversations", json={}).json()
    return {"previous_response_id": before["id"], "conversation": conversation["id"]}


def ask(server: ServerProcess, endpoint: Endpoint, given: dict[str, Any]) -> httpx.Response:
    body = {"model": MODEL, **BODIES[endpoint], **given}
    return httpx.post(f"{server.api}{PATHS[endpoint]}", json=body, timeout=60)


def example(endpoint: Endpoint, name: str, named: dict[str, Any]) -> dict[str, Any]:
    if (endpoint, name) in OF_ENDPOINT:
        return OF_ENDPOINT[endpoint, name]
    if name in named:
        return {name: named[name]}
    return {name: VALUES.get(name, True)}


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_every_row_is_answered_as_it_says(
    scripted_server: ServerProcess, named: dict[str, Any], endpoint: Endpoint
) -> None:
    for name, row in TABLES[endpoint].items():
        if (name == "prompt" and endpoint == "responses") or name == "chat_template":
            continue  # wants a prompt that was stored, or a setting; their own tests ask for them
        if row.verdict == "refused":
            answer = ask(scripted_server, endpoint, {name: [7]})
            assert answer.status_code == 400, name
            assert answer.json()["error"]["param"] == name
            assert answer.json()["error"]["code"] == "unsupported_parameter"
            assert row.reason in answer.json()["error"]["message"]
        else:
            answer = ask(scripted_server, endpoint, example(endpoint, name, named))
            assert answer.status_code == 200, (name, answer.text)


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_every_parameter_of_other_endpoints_is_refused(
    scripted_server: ServerProcess, endpoint: Endpoint
) -> None:
    for name in ELSEWHERE[endpoint]:
        answer = ask(scripted_server, endpoint, {name: [7]})
        assert answer.status_code == 400, name
        assert answer.json()["error"]["param"] == name


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_null_and_what_asks_for_nothing_are_taken(scripted_server: ServerProcess, endpoint: Endpoint) -> None:
    rows = {**TABLES[endpoint], **ELSEWHERE[endpoint]}
    required = {"model", "input", "messages", "prompt"}
    answer = ask(scripted_server, endpoint, dict.fromkeys(rows.keys() - required))
    assert answer.status_code == 200, answer.text
    asks_nothing = {name: row.neutral[0] for name, row in rows.items() if row.neutral}
    answer = ask(scripted_server, endpoint, asks_nothing)
    assert answer.status_code == 200, answer.text


def test_a_parameter_of_another_endpoint_is_refused_over_a_websocket_and_where_tokens_are_counted(
    scripted_server: ServerProcess,
) -> None:
    for path in ("/responses/input_tokens", "/responses/compact"):
        body = {"model": MODEL, "input": "Hi", "messages": SAID}
        answer = httpx.post(f"{scripted_server.api}{path}", json=body, timeout=60)
        assert answer.status_code == 400, path
        assert answer.json()["error"]["param"] == "messages"
    with WebSocket(scripted_server.url) as socket:
        (event,) = socket.turn({"model": MODEL, "input": "Hi", "max_tokens": 3})
        assert event["error"]["param"] == "max_tokens"
        assert socket.turn({"model": MODEL, "input": "Hi"})[-1]["type"] == "response.completed"
