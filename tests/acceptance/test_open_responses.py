"""What the Open Responses compliance suite asks, over each transport, of the demo model."""

import base64
import struct
import zlib
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from tests.support.open_responses import Response, check_compacted, check_events, check_response
from tests.support.server_process import MODEL, ServerProcess
from tests.support.sse import create
from tests.support.websocket import Json, WebSocket

Body = dict[str, object]
Ask = Callable[[ServerProcess, Body], Response]


def user(content: object) -> Body:
    return {"type": "message", "role": "user", "content": content}


def red_square() -> str:
    """A PNG of 32 by 32 pixels as a data URL."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 32, 32, 8, 2, 0, 0, 0)
    pixels = zlib.compress((b"\0" + b"\xff\0\0" * 32) * 32)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(png).decode()


WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather for a location",
    "parameters": {
        "type": "object",
        "properties": {"location": {"type": "string", "description": "The city, e.g. San Francisco"}},
        "required": ["location"],
    },
}

REQUESTS: dict[str, Body] = {
    "basic-response": {"input": [user("Say hello in exactly 3 words.")]},
    "assistant-phase": {
        "input": [
            {"type": "message", "role": "assistant", "phase": phase, "content": content}
            for phase, content in [("commentary", "Let me think."), ("final_answer", "It is done.")]
        ]
        + [user("Thank you!")]
    },
    "system-prompt": {
        "input": [
            {"type": "message", "role": "system", "content": "You are a pirate. Always answer as one."},
            user("Say hello."),
        ]
    },
    "image-input": {
        "input": [
            user(
                [
                    {"type": "input_text", "text": "What do you see?"},
                    {"type": "input_image", "image_url": red_square()},
                ]
            )
        ]
    },
    "multi-turn": {
        "input": [
            user("My name is Alice."),
            {"type": "message", "role": "assistant", "content": "Hello Alice! Nice to meet you."},
            user("What is my name?"),
        ]
    },
    "tool-calling": {
        "input": [user("What's the weather like in San Francisco?")],
        "tools": [WEATHER],
    },
}


def over_post(server: ServerProcess, body: Body) -> Response:
    answer = httpx.post(f"{server.api}/responses", json={"model": MODEL, **body}, timeout=60)
    assert answer.status_code == 200, answer.text
    return check_response(answer.json())


def over_stream(server: ServerProcess, body: Body) -> Response:
    with create(server.url, {"model": MODEL, **body}) as stream:
        return check_events([frame.json for frame in stream])


def over_websocket(server: ServerProcess, body: Body) -> Response:
    with WebSocket(server.url) as socket:
        return turn(socket, body)


every_transport = pytest.mark.parametrize(
    "ask", [over_post, over_stream, over_websocket], ids=["post", "stream", "websocket"]
)


def turn(socket: WebSocket, body: Body) -> Response:
    return check_events(socket.turn({"model": MODEL, **body}))


def error_code(events: list[Json]) -> str | None:
    """Where the suite looks for it: in the error event, or in a failed response."""
    last = events[-1]
    if last["type"] == "error":
        assert isinstance(last["status"], int)
        assert isinstance(last["error"]["message"], str)
        told: str | None = last["error"]["code"]
        return told
    assert last["type"] == "response.failed"
    code: str = last["response"]["error"]["code"]
    return code


@every_transport
@pytest.mark.parametrize("name", REQUESTS)
def test_request_is_answered_as_the_specification_says(
    demo_server: ServerProcess, name: str, ask: Ask
) -> None:
    response = ask(demo_server, REQUESTS[name])
    assert response.output
    assert response.status == "completed"
    if name == "tool-calling":
        assert [item.type for item in response.output] == ["function_call"]


@pytest.mark.parametrize(
    ("phase", "fits"), [({}, True), ({"phase": "commentary"}, True), ({"phase": None}, False)]
)
def test_phase_of_a_message_is_absent_or_a_value(phase: dict[str, Any], fits: bool) -> None:
    message = {"type": "message", "id": "m", "status": "completed", "role": "assistant", "content": []}
    event = {
        "type": "response.output_item.done",
        "sequence_number": 0,
        "output_index": 0,
        "item": message | phase,
    }
    with pytest.raises(AssertionError if fits else ValidationError):
        check_events([event])  # a single event of an item ends no response


@every_transport
def test_every_field_that_a_request_may_set_is_repeated_in_its_form(
    demo_server: ServerProcess, ask: Ask
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    response = ask(
        demo_server,
        {
            "input": "Hello!",
            "instructions": "Be brief.",
            "tools": [WEATHER],
            "tool_choice": {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "get_weather"}],
            },
            "text": {"format": {"type": "json_schema", "name": "a", "schema": schema}, "verbosity": "low"},
            "reasoning": {"effort": "none"},
            "metadata": {"a": "b"},
            "top_logprobs": 2,
            "include": ["message.output_text.logprobs"],
            "prompt_cache_key": "key",
            "safety_identifier": "someone",
            "service_tier": "auto",
            "truncation": "auto",
            "max_output_tokens": 64,
            "max_tool_calls": 3,
            "presence_penalty": 0.5,
        },
    )
    assert response.service_tier == "default"
    assert response.tools[0].strict is not None
    assert (response.max_output_tokens, response.presence_penalty) == (64, 0.5)


def test_two_unstored_turns_follow_each_other_on_a_socket(demo_server: ServerProcess) -> None:
    with WebSocket(demo_server.url) as socket:
        for text in ("Hello!", "Count to 3"):
            response = turn(socket, {"input": text, "store": False})
            assert (response.status, response.store) == ("completed", False)


def test_unstored_turn_is_gone_on_from_on_its_socket_and_no_other(demo_server: ServerProcess) -> None:
    with WebSocket(demo_server.url) as socket:
        first = turn(socket, {"input": "My name is Xiomara.", "store": False})
        going_on: Body = {
            "input": "What is my name?",
            "store": False,
            "previous_response_id": first.id,
        }
        assert turn(socket, going_on).status == "completed"
    with WebSocket(demo_server.url) as again:
        assert error_code(again.turn({"model": MODEL, **going_on})) == "previous_response_not_found"
        assert turn(again, {"input": "Hello!", "store": False}).status == "completed"


def test_previous_response_that_was_never_made_is_told_by_its_code(demo_server: ServerProcess) -> None:
    made_up = {"input": "Hello!", "store": False, "previous_response_id": "resp_made_up"}
    with WebSocket(demo_server.url) as socket:
        assert error_code(socket.turn({"model": MODEL, **made_up})) == "previous_response_not_found"


def test_turn_that_fails_evicts_what_it_went_on_from(demo_server: ServerProcess) -> None:
    with WebSocket(demo_server.url) as socket:
        first = turn(socket, {"input": "Hello!", "store": False})
        going_on = {"model": MODEL, "input": "Hello!", "store": False, "previous_response_id": first.id}
        unmatched = {"type": "function_call_output", "call_id": "call_never_issued", "output": "42"}
        error_code(socket.turn({**going_on, "input": [unmatched]}))
        assert error_code(socket.turn(going_on)) == "previous_response_not_found"


def compact(server: ServerProcess, **body: object) -> httpx.Response:
    return httpx.post(f"{server.api}/responses/compact", json=body, timeout=60)


def test_conversation_is_compacted_to_an_input_with_a_sealed_item(demo_server: ServerProcess) -> None:
    talk = [user("My name is Alice."), {"type": "message", "role": "assistant", "content": "Hello Alice!"}]
    answer = compact(demo_server, model=MODEL, prompt_cache_key="key", input=talk)
    assert answer.status_code == 200, answer.text
    compacted = check_compacted(answer.json())
    (sealed,) = (item for item in compacted.output if item.type == "compaction")
    assert sealed.encrypted_content


def test_compaction_without_a_model_is_refused(demo_server: ServerProcess) -> None:
    assert compact(demo_server, input=[user("Hello!")]).status_code == 400


def test_compacted_conversation_is_gone_on_from_over_a_socket(demo_server: ServerProcess) -> None:
    said = {"type": "output_text", "text": "Hello Alice!"}
    talk = [
        user("My name is Alice."),
        {"type": "message", "role": "assistant", "content": [said]},
        user("Hello again!"),
    ]
    answer = compact(demo_server, model=MODEL, input=talk)
    assert answer.is_success, answer.text
    window = answer.json()["output"]
    with WebSocket(demo_server.url) as socket:
        response = turn(socket, {"input": [*window, user("What is my name?")], "tools": [], "store": False})
    assert response.status == "completed"
