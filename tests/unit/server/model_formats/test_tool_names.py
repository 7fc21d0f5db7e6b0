"""By what names a model knows tools, and which tools are meant by others."""

import pytest

from server.model_formats.harmony.tools import tool_of, tools_by_recipient
from server.model_formats.model_format import PromptConversation, PromptTool
from server.model_formats.tool_names import (
    ToolIndex,
    find_tool,
    without_labels,
)
from server.protocol.responses.items import FunctionCall
from server.protocol.responses.tools import ToolChoice
from tests.support.families import format_of, tokenizer_at


def served(label: str, name: str, *, prefixed: bool = False) -> PromptTool:
    return PromptTool(name=name, namespace=label, hosted=True, prefixed=prefixed)


def names(*tools: PromptTool) -> list[str]:
    return [tool.prompt_name for tool in without_labels(tools)]


def test_the_tools_of_an_mcp_server_have_its_label_only_where_names_collide() -> None:
    assert names(served("city", "weather"), served("city", "time")) == ["weather", "time"]
    assert names(served("city", "weather"), served("sea", "weather")) == ["city__weather", "sea__weather"]
    assert names(served("city", "weather"), PromptTool(name="weather")) == ["city__weather", "weather"]
    assert names(served("a", "b__c"), served("b", "c"), PromptTool(name="c")) == ["a__b__c", "b__c", "c"]


def test_tools_in_a_namespace_of_the_callers_keep_its_name() -> None:
    assert names(PromptTool(name="find", namespace="crm")) == ["crm__find"]


def test_the_tools_of_a_request_from_an_earlier_release_keep_their_labels() -> None:
    assert names(served("city", "weather", prefixed=True)) == ["city__weather"]


def test_a_choice_means_the_tool_of_a_server_by_its_label_alone() -> None:
    tools = ToolIndex(without_labels([served("city", "weather"), PromptTool(name="weather")]))
    assert list(tools.only(["weather"]).tools) == ["weather"]
    assert list(tools.only(["city__weather"]).tools) == ["city__weather"]
    alone = ToolIndex(without_labels([served("city", "weather")]))
    assert list(alone.only(["city__weather"]).tools) == ["weather"]


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("weather", "city__weather"),
        ("time", "W-time"),
        ("functions.time", None),
        ("", None),
        ("ather", None),
        ("find", None),
    ],
)
def test_a_name_means_the_only_tool_that_ends_in_it(said: str, meant: str | None) -> None:
    tools = [PromptTool(name=name) for name in ("city__weather", "W-time", "a.find", "b.find")]
    found = find_tool(said, tools)
    assert (found.name if found else None) == meant


@pytest.mark.parametrize(
    ("called", "meant"),
    [
        ("functions.weather", ("weather", "city")),
        ("weather", ("weather", "city")),
        ("city__weather", ("weather", "city")),
        ("functions.city-weather", ("weather", "city")),
        ("functions.time", ("W-time", None)),
        ("functions.other", ("other", None)),
        ("city.other", ("other", "city")),
    ],
)
def test_gpt_oss_means_a_tool_by_the_end_of_its_name(called: str, meant: tuple[str, str | None]) -> None:
    tool = tool_of(called, tools_by_recipient([served("city", "weather"), PromptTool(name="W-time")]))
    assert (tool.name, tool.namespace) == meant


def test_calls_in_a_history_have_the_names_that_the_model_knows_now() -> None:
    call = FunctionCall("fc_1", "completed", "call_1", "weather", "{}", "city")

    def written(*tools: PromptTool) -> str:
        conversation = PromptConversation(items=[call], tools=tools, tool_choice=ToolChoice())
        return tokenizer_at("hermes").decode(format_of("hermes").write(conversation).token_ids)

    assert '"name": "weather", "arguments"' in written(served("city", "weather"))
    assert '"name": "city__weather", "arguments"' in written(served("city", "weather", prefixed=True))
    assert '"name": "city__weather", "arguments"' in written()
