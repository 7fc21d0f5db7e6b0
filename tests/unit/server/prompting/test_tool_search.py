"""The search for deferred tools without a server: what it finds, and what a prompt has of them."""

import json
from typing import Any

import pytest

from server.model_formats.model_format import PromptConversation, PromptError
from server.prompting.tool_search import MAX_FOUND, describe_found, find_tools, search_tool, with_loaded_tools
from server.prompting.write_prompt import make_conversation
from server.protocol.responses.items import ListedTool, ToolSearchOutput
from server.protocol.responses.request import CreateResponse
from server.protocol.responses.tools import McpTool, Tool, ToolSearchTool, read_tools

Body = dict[str, Any]


def function(name: str, description: str = "", **more: Any) -> Body:
    return {"type": "function", "name": name, "description": description, "defer_loading": True, **more}


CRM: Body = {
    "type": "namespace",
    "name": "crm",
    "description": "All about customers.",
    "tools": [
        function("list_orders", "Lists the orders of a customer."),
        function("getProfile", "Reads a profile."),
        function("open_ticket", "Opens a ticket.", defer_loading=False),
    ],
}
SONGS: Body = {"type": "custom", "name": "sing", "description": "Sings a song.", "defer_loading": True}
CITY = McpTool(
    "city",
    server_description="Facts about cities.",
    defer_loading=True,
    listed=[ListedTool("weather", "The weather of a day."), ListedTool("mayor", "Who governs.")],
    allowed_tools=["weather"],
)
TOOLS: list[Tool] = [*read_tools([CRM, SONGS, function("weigh", "The weight of a thing.")]), CITY]


def found(query: str, tools: list[Tool] = TOOLS) -> list[str]:
    names: list[str] = []
    for tool in find_tools(tools, json.dumps({"query": query})):
        group = tool.get("name") or tool.get("server_label")
        inner = [one["name"] for one in tool.get("tools", [])] or tool.get("allowed_tools")
        names += [f"{group}.{name}" for name in inner] if inner else [str(group)]
    return names


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("orders", ["crm.list_orders"]),
        ("the profile of somebody", ["crm.getProfile"]),
        ("crm", ["crm.list_orders", "crm.getProfile"]),
        ("Singing? A SONG", ["sing"]),
        ("weather", ["city.weather"]),
        ("mayor", []),
        ("ticket", []),
        ("nothing like it", []),
        ("", []),
    ],
)
def test_tools_are_found_by_the_words_of_names_descriptions_and_groups(query: str, names: list[str]) -> None:
    assert found(query) == names


def test_any_strings_in_the_arguments_are_searched_and_no_others_break_it() -> None:
    assert find_tools(TOOLS, '{"paths": ["crm"], "limit": 3}') == find_tools(TOOLS, '{"query": "crm"}')
    assert [find_tools(TOOLS, wrong) for wrong in ("", "[1]", "{", '"crm"')] == [[], [], [], []]


def test_rare_words_count_more_and_the_best_are_chosen_where_many_match() -> None:
    many = read_tools([function(f"read_{index}", "Reads a file.") for index in range(2 * MAX_FOUND)])
    assert len(found("read a file", many)) == MAX_FOUND
    rare = read_tools([*({**function(f"read_{index}", "Reads.")} for index in range(30)), function("shred")])
    assert found("read or shred", rare) == ["shred"]


def test_search_tells_groups_and_single_tools_with_their_descriptions() -> None:
    (tool,) = search_tool(ToolSearchTool(), TOOLS)
    assert (tool.description or "").splitlines()[-4:] == [
        "- crm All about customers.",
        "- sing Sings a song.",
        "- weigh The weight of a thing.",
        "- city Facts about cities.",
    ]
    assert (tool.parameters or {})["required"] == ["query"]


def test_search_has_the_words_and_the_schema_of_the_request() -> None:
    own = ToolSearchTool("Mine.", "client", {"type": "object"})
    (tool,) = search_tool(own, [])
    assert (tool.description, tool.parameters) == ("Mine.", {"type": "object"})
    (default,) = search_tool(ToolSearchTool(execution="client"), [])
    assert (default.parameters or {})["required"] == ["paths"]


def test_search_by_the_server_with_nothing_to_find_is_no_tool() -> None:
    assert search_tool(ToolSearchTool(), read_tools([function("f", defer_loading=False)])) == []


def conversation(choice: object = None, *outputs: list[Body], search: bool = True) -> PromptConversation:
    request = CreateResponse(model="m", input="x", tool_choice=choice)  # type: ignore[arg-type]
    items = [ToolSearchOutput("", "completed", tools, "server", "call_1") for tools in outputs]
    tools = [*TOOLS, *([ToolSearchTool()] if search else [])]
    return with_loaded_tools(make_conversation(request, tools, items, None), items)


def test_prompt_has_only_what_was_found_and_does_not_list_it() -> None:
    before = {tool.prompt_name: tool.listed for tool in conversation().tools}
    assert before == {"crm__open_ticket": True, "tool_search": True}
    loaded = conversation(None, find_tools(TOOLS, '{"q": "orders"}'), find_tools(TOOLS, '{"q": "weather"}'))
    after = {tool.prompt_name: tool.listed for tool in loaded.tools}
    assert after == {**before, "crm__list_orders": False, "weather": False}


def test_without_the_search_found_tools_are_listed_as_all_others() -> None:
    loaded = conversation(None, find_tools(TOOLS, '{"q": "orders"}'), search=False)
    assert all(tool.listed for tool in loaded.tools)


def test_result_has_the_definitions_by_the_names_that_the_model_calls() -> None:
    tools = find_tools(TOOLS, '{"q": "orders weather"}')
    loaded = conversation(None, tools)
    item = ToolSearchOutput("", "completed", tools, "server", "call_1")
    lines = describe_found(loaded.tools, item).splitlines()[1:]
    assert [json.loads(line)["name"] for line in lines] == ["crm__list_orders", "weather"]
    nothing = ToolSearchOutput("", "completed", [], "server", "call_1")
    assert "No tool matches" in describe_found(loaded.tools, nothing)


def test_choice_keeps_the_tools_that_are_there_and_is_refused_without_any() -> None:
    allowed: Body = {"type": "allowed_tools", "mode": "auto"}
    both = [{"type": "tool_search"}, {"type": "function", "name": "list_orders"}]
    assert conversation({**allowed, "tools": both}).tool_choice.allowed == ("tool_search",)
    loaded = conversation({**allowed, "tools": both}, find_tools(TOOLS, '{"q": "orders"}'))
    assert loaded.tool_choice.allowed == ("tool_search", "list_orders")
    with pytest.raises(PromptError) as refused:
        conversation({"type": "function", "name": "list_orders"})
    assert refused.value.param == "tool_choice"
