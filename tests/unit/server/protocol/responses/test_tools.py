from typing import Any

import pytest

from server.errors import InvalidRequest
from server.protocol.responses.tools import ToolChoice, callable_names, echo, read_choice, read_tools

F: dict[str, Any] = {"type": "function", "name": "f", "parameters": {"type": "object"}}
G: dict[str, Any] = {
    "type": "custom",
    "name": "g",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: A"},
}
N: dict[str, Any] = {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "h"}]}
HOSTED: list[dict[str, Any]] = [
    {"type": "web_search"},
    {"type": "file_search", "vector_store_ids": []},
    {"type": "from_the_future", "a": []},
]


def test_hosted_tools_are_left_out_and_the_others_are_kept_in_order() -> None:
    tools = read_tools([HOSTED[0], F, HOSTED[1], G, N, HOSTED[2]])
    assert [tool.name for tool in tools] == ["f", "g", "n"]
    assert callable_names(tools) == {"f", "g", "h"}


def test_a_tool_is_repeated_with_every_field_that_may_be_null() -> None:
    assert [echo(tool) for tool in read_tools([F, {"type": "custom", "name": "c"}])] == [
        {**F, "description": None, "strict": False},
        {"type": "custom", "name": "c", "format": {"type": "text"}},
    ]


@pytest.mark.parametrize(
    ("given", "choice"),
    [
        (None, ToolChoice()),
        ("auto", ToolChoice()),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        ({"type": "function", "name": "f"}, ToolChoice("required", ("f",))),
        ({"type": "custom", "name": "g"}, ToolChoice("required", ("g",))),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
            ToolChoice("auto", ("f",)),
        ),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "h"}]},
            ToolChoice("required", ("h",)),
        ),
    ],
)
def test_every_form_of_the_choice_is_read(given: Any, choice: ToolChoice) -> None:
    assert read_choice(given, read_tools([F, G, N])) == choice


@pytest.mark.parametrize(
    "given",
    ["any", 3, {}, {"type": "function"}, {"type": "function", "name": "x"}, {"type": "web_search"}, []],
)
def test_a_choice_of_what_is_not_there_is_refused(given: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_choice(given, read_tools([F]))
    assert (caught.value.param or "").startswith("tool_choice")


def test_a_choice_is_required_only_where_there_are_tools() -> None:
    with pytest.raises(InvalidRequest):
        read_choice("required", read_tools(HOSTED))
    assert read_choice("auto", []) == ToolChoice()
