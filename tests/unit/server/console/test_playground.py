import ast
from typing import Any

import pytest

from server.console.pages.playground import code_samples, request_body
from server.errors import InvalidRequest


def test_empty_fields_are_left_out() -> None:
    form = {"model": "m", "input": "Hello", "temperature": "", "tools": "", "instructions": ""}
    assert request_body(form) == {"model": "m", "input": "Hello", "stream": True, "store": True}


def test_every_field_becomes_its_parameter() -> None:
    form = {
        "model": "m",
        "input": "Hello",
        "instructions": "Be short.",
        "previous_response_id": "resp_1",
        "effort": "low",
        "temperature": "0.5",
        "max_output_tokens": "100",
        "seed": "7",
        "tools": '[{"type": "function", "name": "f"}]',
        "tool_choice": '{"type": "function", "name": "f"}',
        "format": '{"type": "json_object"}',
        "background": "1",
    }
    assert request_body(form) == {
        "model": "m",
        "input": "Hello",
        "instructions": "Be short.",
        "previous_response_id": "resp_1",
        "reasoning": {"effort": "low", "summary": "auto"},
        "temperature": 0.5,
        "max_output_tokens": 100,
        "seed": 7,
        "tools": [{"type": "function", "name": "f"}],
        "tool_choice": {"type": "function", "name": "f"},
        "text": {"format": {"type": "json_object"}},
        "background": True,
        "stream": True,
        "store": True,
    }


def test_outputs_of_calls_come_before_the_message() -> None:
    body = request_body({"model": "m", "input": "And?", "output:call_1": "sunny"})
    assert body["input"] == [
        {"type": "function_call_output", "call_id": "call_1", "output": "sunny"},
        {"type": "message", "role": "user", "content": "And?"},
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", "warm"),
        ("temperature", "nan"),
        ("top_p", "-inf"),
        ("tools", '["\\ud800"]'),
        ("tools", "[NaN]"),
        ("seed", "1.5"),
        ("tools", "{"),
        ("format", "[" * 100_000),
        ("tool_choice", "{"),
    ],
)
def test_a_field_that_cannot_be_read_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        request_body({"model": "m", name: value})
    assert refused.value.param == name


BODY: dict[str, Any] = {
    "model": "m",
    "input": 'it\'s "x"\n',
    "stream": True,
    "tools": [{"a": None}],
    "top_p": 0.5,
}


def test_the_code_in_python_is_the_same_request() -> None:
    (call,) = [
        node
        for node in ast.walk(ast.parse(code_samples(BODY, "http://x/v1")["Python"]))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "client.responses.create"
    ]
    assert ast.literal_eval(call.keywords[0].value) == BODY


def test_a_quote_does_not_end_the_argument_of_curl() -> None:
    assert "it'\\''s" in code_samples(BODY, "http://x/v1")["curl"]
