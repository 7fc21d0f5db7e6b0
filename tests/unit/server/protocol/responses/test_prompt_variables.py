from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.errors import InvalidRequest
from server.protocol.responses.items import MAX_TEXT, Message
from server.protocol.responses.prompt_variables import Template, fill, read_template
from tests.support.builders import examples


def make(**content: object) -> Template:
    return read_template(msgspec.json.encode(content))


def texts(template: Template) -> list[str]:
    """The instructions, then every message's text."""
    parts: list[Any] = [part for item in template.items if isinstance(item, Message) for part in item.content]
    return [template.instructions or "", *(part.text for part in parts)]


def test_variables_are_filled_in_wherever_they_stand() -> None:
    template = make(
        instructions="You are {{ name }}. {{name}}!",
        input=[
            {"role": "user", "content": "Hello {{name}}, {{ topic }}?"},
            {"role": "assistant", "content": [{"type": "output_text", "text": "{{topic}}"}]},
        ],
    )
    assert template.names == {"name", "topic"}
    filled = fill(template, {"name": "Bo", "topic": {"type": "input_text", "text": "rain"}})
    assert texts(filled) == ["You are Bo. Bo!", "Hello Bo, rain?", "rain"]


@examples(50)
@given(st.text())
def test_what_is_filled_in_is_not_looked_at_again(value: str) -> None:
    assert texts(fill(make(instructions="<{{a}}>"), {"a": value})) == [f"<{value}>"]
    assert texts(fill(make(instructions="{{a}}{{b}}"), {"a": "{{b}}", "b": value})) == ["{{b}}" + value]


@pytest.mark.parametrize("text", ["{{}}", "{a}", "{{ a b }}", "{{1a}}", "{% if a %}", "{{a", "{{a|upper}}"])
def test_what_is_no_variable_stays_as_it_is(text: str) -> None:
    template = make(instructions=text)
    assert template.names == set()
    assert texts(fill(template, {})) == [text]


def test_input_of_a_template_may_be_a_string() -> None:
    assert texts(fill(make(input="Tell me of {{a}}."), {"a": "rain"})) == ["", "Tell me of rain."]


@pytest.mark.parametrize(
    ("variables", "param", "code"),
    [
        ({}, "prompt.variables.a", "missing_variable"),
        ({"b": "x"}, "prompt.variables.a", "missing_variable"),
        ({"a": "x", "b": "x"}, "prompt.variables.b", "unknown_variable"),
        ({"a": 7}, "prompt.variables.a", "invalid_type"),
        ({"a": None}, "prompt.variables.a", "invalid_type"),
        ({"a": {"type": "input_image", "image_url": "x"}}, "prompt.variables.a", "invalid_type"),
        ({"a": {"type": "input_text"}}, "prompt.variables.a", "invalid_type"),
        ({"a": "x" * (MAX_TEXT // 2)}, "prompt.variables", "invalid_value"),
    ],
)
def test_wrong_variable_is_refused_by_name(variables: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        fill(make(instructions="{{a}}{{a}}{{a}}"), variables)
    assert (caught.value.param, caught.value.code) == (param, code)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"instructions": ""},
        {"instructions": 7},
        {"instructions": "x", "model": "y"},
        {"input": []},
        {"input": [{"role": "wizard", "content": "x"}]},
        {"input": [{"type": "item_reference", "id": "msg_1"}]},
        {"input": [{"type": "compaction_trigger"}]},
        {"instructions": "\0"},
    ],
)
def test_wrong_template_is_refused(content: object) -> None:
    with pytest.raises(InvalidRequest):
        read_template(msgspec.json.encode(content))
