"""What does not go together in a request, or is no value of a parameter, is a 400 that names it."""

from typing import Any

import httpx
import pytest

from tests.support.server_process import MODEL, ServerProcess
from tests.support.websocket import WebSocket

SAID = [{"role": "user", "content": "Hi"}]
FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {}}}
CHAT_TOOL = {"type": "function", "function": FUNCTION}
SCHEMA = {"type": "object"}
FORMAT = {"type": "json_schema", "name": "answer", "schema": SCHEMA}
CHAT_FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
CHOICE = {"choice": ["a"]}


def post(
    server: ServerProcess, path: str, headers: dict[str, str] | None = None, **body: Any
) -> httpx.Response:
    given: dict[str, dict[str, Any]] = {
        "/responses": {"input": "Hi"},
        "/chat/completions": {"messages": SAID},
        "/completions": {"prompt": "Hi"},
    }
    return httpx.post(
        f"{server.api}{path}",
        json={"model": MODEL, **given[path], **body},
        headers=headers,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/chat/completions", {"stream_options": {"include_usage": True}}, "stream_options"),
        ("/completions", {"stream_options": {"include_usage": True}}, "stream_options"),
        ("/chat/completions", {"tools": [], "tool_choice": "required"}, "tool_choice"),
        (
            "/chat/completions",
            {"tools": [], "tool_choice": {"type": "function", "function": {"name": "f"}}},
            "tool_choice",
        ),
        ("/chat/completions", {"tool_choice": "auto"}, "tool_choice"),
        ("/chat/completions", {"tool_choice": "required"}, "tool_choice"),
        (
            "/chat/completions",
            {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
            "response_format.json_schema.name",
        ),
        (
            "/completions",
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a b", "schema": SCHEMA}}},
            "response_format.json_schema.name",
        ),
        ("/responses", {"text": {"format": {**FORMAT, "name": None}}}, "text.format.name"),
        ("/responses", {"text": {"format": {**FORMAT, "name": "a b!"}}}, "text.format.name"),
        ("/responses", {"text": {"format": {**FORMAT, "name": "n" * 65}}}, "text.format.name"),
        ("/responses", {"input": []}, "input"),
        ("/responses", {"previous_response_id": "msg_1"}, "previous_response_id"),
        ("/responses", {"conversation": "resp_1"}, "conversation"),
        ("/responses", {"conversation": ""}, "conversation"),
        ("/responses", {"conversation": {"id": "a thread"}}, "conversation"),
        (
            "/responses",
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].image_url",
        ),
        ("/responses", {"safety_identifier": "s" * 129}, "safety_identifier"),
        ("/chat/completions", {"safety_identifier": "s" * 129}, "safety_identifier"),
        ("/responses", {"cache_salt": ""}, "cache_salt"),
        ("/chat/completions", {"cache_salt": ""}, "cache_salt"),
        ("/completions", {"cache_salt": ""}, "cache_salt"),
        ("/responses", {"structured_outputs": CHOICE, "text": {"format": FORMAT}}, "structured_outputs"),
        ("/responses", {"guided_choice": ["a"], "text": {"format": FORMAT}}, "guided_choice"),
        (
            "/chat/completions",
            {"structured_outputs": CHOICE, "response_format": CHAT_FORMAT},
            "structured_outputs",
        ),
        (
            "/chat/completions",
            {
                "structured_outputs": CHOICE,
                "tools": [CHAT_TOOL],
                "tool_choice": {"type": "function", "function": {"name": "f"}},
            },
            "structured_outputs",
        ),
        ("/responses", {"request_id": "r" * 129}, "request_id"),
        ("/responses", {"request_id": "two words"}, "request_id"),
        (
            "/responses",
            {"previous_input_messages": SAID, "previous_response_id": "resp_x"},
            "previous_input_messages",
        ),
        ("/responses", {"previous_input_messages": [{"role": "x"}]}, "previous_input_messages[0].role"),
        ("/responses", {"structured_outputs": {"grammar": "root ::= x"}}, "structured_outputs.grammar"),
    ],
)
def test_it_is_refused_by_its_name(
    scripted_server: ServerProcess, path: str, body: dict[str, Any], param: str
) -> None:
    answer = post(scripted_server, path, **body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/chat/completions", {"stream_options": {"include_usage": True}, "stream": True}),
        ("/chat/completions", {"stream_options": None}),
        ("/chat/completions", {"tool_choice": "none"}),
        ("/chat/completions", {"tools": None, "tool_choice": None}),
        ("/responses", {"tools": []}),
        ("/responses", {"input": [], "previous_input_messages": SAID}),
        ("/responses", {"structured_outputs": CHOICE, "text": {"format": {"type": "text"}}}),
        ("/responses", {"cache_salt": "s" * 1024, "safety_identifier": "s" * 128}),
        ("/chat/completions", {"tools": [], "tool_choice": "auto"}),
        ("/chat/completions", {"tools": [], "tool_choice": "none"}),
        ("/chat/completions", {"tools": []}),
        ("/responses", {"tools": [], "tool_choice": "auto"}),
        ("/responses", {"truncation": "disabled", "input": [{"role": "user", "content": "Hi"}]}),
        (
            "/chat/completions",
            {
                "response_format": {
                    "type": "structural_tag",
                    "structures": [{"begin": "<n>", "schema": {"type": "integer"}, "end": "</n>"}],
                    "triggers": ["<n"],
                }
            },
        ),
    ],
)
def test_it_is_taken(scripted_server: ServerProcess, path: str, body: dict[str, Any]) -> None:
    assert post(scripted_server, path, max_tokens=None, **body).status_code == 200


@pytest.mark.parametrize("path", ["/responses", "/chat/completions", "/completions"])
def test_a_request_has_the_id_that_its_caller_gave_it(scripted_server: ServerProcess, path: str) -> None:
    answer = post(scripted_server, path, {"X-Request-Id": "job-17/3"})
    assert answer.headers["x-request-id"] == "job-17/3"
    refused = post(scripted_server, path, {"X-Request-Id": "job-18"}, temperature=9)
    assert (refused.status_code, refused.headers["x-request-id"]) == (400, "job-18")
    assert post(scripted_server, path, request_id="mine").headers["x-request-id"] == "mine"
    streamed = post(scripted_server, path, {"X-Request-Id": "job-19"}, stream=True)
    assert streamed.headers["x-request-id"] == "job-19"


@pytest.mark.parametrize("given", ["i" * 129, "two words", "tab\there"])
def test_a_header_that_is_no_id_is_not_taken(scripted_server: ServerProcess, given: str) -> None:
    answer = post(scripted_server, "/responses", {"X-Request-Id": given})
    assert answer.status_code == 200
    assert answer.headers["x-request-id"].startswith("req_")


def test_an_empty_input_over_a_websocket_may_prepare_and_not_ask(scripted_server: ServerProcess) -> None:
    with WebSocket(scripted_server.url) as socket:
        (refused,) = socket.turn({"model": MODEL, "input": []})
        assert refused["error"]["param"] == "input"
