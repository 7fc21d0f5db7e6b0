"""A history that a client brings as messages, of a chat's form or of harmony's."""

from typing import Any

import pytest

from server.errors import InvalidRequest
from server.protocol.responses.items import FunctionCall, FunctionCallOutput, Message, Reasoning, plain_text
from server.request_input.previous_messages import read_previous

CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Left out."},
    {"role": "developer", "content": "Left out, too."},
    {"role": "user", "content": "What is the weather?"},
    {
        "role": "assistant",
        "content": None,
        "reasoning": "I ask.",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "w", "arguments": "{}"}}],
    },
    {"role": "tool", "name": "w", "content": "Sun."},
    {"role": "assistant", "content": "It is sunny."},
]
HARMONY: list[dict[str, Any]] = [
    {"author": {"role": "system"}, "content": [{"type": "system_content"}]},
    {"author": {"role": "user", "name": None}, "content": [{"type": "text", "text": "What is the weather?"}]},
    {"author": {"role": "assistant"}, "channel": "analysis", "content": "I ask."},
    {
        "author": {"role": "assistant"},
        "channel": "commentary",
        "recipient": "functions.w",
        "content_type": "json",
        "content": [{"type": "text", "text": "{}"}],
    },
    {
        "author": {"role": "tool", "name": "functions.w"},
        "channel": "commentary",
        "content": [{"type": "text", "text": "Sun."}],
    },
    {"author": {"role": "assistant"}, "channel": "final", "content": [{"text": "It is sunny."}]},
]


@pytest.mark.parametrize("messages", [CHAT, HARMONY], ids=["chat", "harmony"])
def test_messages_are_items_in_order_without_those_that_instruct(messages: list[dict[str, Any]]) -> None:
    asked, thought, call, output, answer = read_previous(messages)
    assert isinstance(asked, Message)
    assert (asked.role, plain_text(asked.content)) == ("user", "What is the weather?")
    assert isinstance(thought, Reasoning)
    assert isinstance(call, FunctionCall)
    assert (call.name, call.arguments) == ("w", "{}")
    assert isinstance(output, FunctionCallOutput)
    assert (output.call_id, output.output) == (call.call_id, "Sun.")
    assert isinstance(answer, Message)
    assert (answer.role, plain_text(answer.content)) == ("assistant", "It is sunny.")


def test_outputs_belong_to_calls_of_their_function_in_order() -> None:
    said = [
        {"author": {"role": "assistant"}, "recipient": "functions.a", "content": "1"},
        {"author": {"role": "assistant"}, "recipient": "functions.a", "content": "2"},
        {"author": {"role": "tool", "name": "functions.a"}, "content": "first"},
        {"author": {"role": "tool", "name": "functions.a"}, "content": "second"},
    ]
    items = read_previous(said)
    assert [item.call_id for item in items] == ["call_0", "call_1", "call_0", "call_1"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "robot", "content": "x"}, "previous_input_messages[0].role"),
        ({"author": {"role": "robot"}, "content": "x"}, "previous_input_messages[0].author"),
        ({"author": {"role": "user"}, "content": [{"type": "image"}]}, "previous_input_messages[0].content"),
        (
            {"author": {"role": "assistant"}, "recipient": "browser.search", "content": "x"},
            "previous_input_messages[0].recipient",
        ),
        (
            {"author": {"role": "tool", "name": "functions.a"}, "content": "x"},
            "previous_input_messages[0].author.name",
        ),
        ({"message": "raw", "tokens": [1]}, "previous_input_messages[0].role"),
    ],
)
def test_what_cannot_be_read_is_refused_by_its_path(message: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_previous([message])
    assert refused.value.param == param
