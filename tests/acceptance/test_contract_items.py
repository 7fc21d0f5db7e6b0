"""Every item, tool and tool choice of OpenAI's Responses API, and what this server does with each.

What a model makes of them is shown in other files. OpenAI's own types say whether a row is missing.
"""

from collections.abc import Iterator

import pytest
from openai.types.responses import response_input_item_param, tool_param

from tests.acceptance.error_object import check_error
from tests.support.contract import (
    FUNCTION,
    NOTHING,
    USER,
    Answer,
    Api,
    Body,
    Check,
    Row,
    all_of,
    in_prompt,
    kept,
    refused,
    told,
    types_in,
)
from tests.support.server_process import MODEL, ServerProcess

YES: Body = {"type": "grammar", "syntax": "regex", "definition": "yes"}
TOLD_FUNCTION: Body = {**FUNCTION, "description": None, "strict": False}
CUSTOM: Body = {"type": "custom", "name": "speak", "description": "Says it.", "format": YES}
TEXT: Body = {"type": "input_text", "text": "A part."}
CALL: Body = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
OUTPUT: Body = {"type": "function_call_output", "call_id": "c1", "output": "A cat."}
CUSTOM_CALL: Body = {"type": "custom_tool_call", "call_id": "c2", "name": "speak", "input": "Hey"}
CUSTOM_OUTPUT: Body = {"type": "custom_tool_call_output", "call_id": "c2", "output": [TEXT]}
REASONING: Body = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
FILE: Body = {"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,SGVhciBtZQ=="}
IMAGE: Body = {
    "type": "input_image",
    "image_url": "data:image/png;base64,AAAA",
    "file_id": None,
    "detail": "low",
}
ANSWER: Body = {"type": "output_text", "text": "It was.", "annotations": [], "logprobs": []}


@pytest.fixture(scope="module")
def api(scripted_server: ServerProcess) -> Iterator[Api]:
    made = Api(scripted_server)
    yield made
    made.close()


def message(role: str, *content: Body, **more: str) -> Body:
    return {"type": "message", "role": role, "content": list(content), **more}


def is_referred_to(api: Api) -> None:
    made = api.create(input="Remember me.")
    (item,) = api.send("GET", f"responses/{made['id']}/input_items").json()["data"]
    for reference in ({"type": "item_reference", "id": item["id"]}, {"id": item["id"]}):
        assert "Remember me." in api.prompt(input=[reference, USER])
    body = {"model": MODEL, "input": [{"type": "item_reference", "id": "msg_x"}]}
    assert (
        check_error(api.send("POST", "responses", body), 404, "invalid_request_error")["param"]
        == "input[0].id"
    )


def is_compacted(api: Api) -> None:
    body = {"model": MODEL, "input": [message("assistant", ANSWER)]}
    (sealed,) = api.send("POST", "responses/compact", body).json()["output"]
    assert "It was." in api.prompt(input=[sealed, USER])
    kept({"type": "compaction", "encrypted_content": "somebody else's"})(api)


def added(*tools: Body) -> Body:
    return {"type": "additional_tools", "role": "developer", "tools": list(tools)}


def names_of(made: Answer) -> list[str]:
    return [tool["name"] for tool in made["tools"]]


def brings_tools(api: Api) -> None:
    """To this response and to every later one of its chain or conversation, and it is an item of them."""
    first = api.create(input=[added(FUNCTION), USER])
    assert names_of(first) == ["look"]
    (_, item) = api.send("GET", f"responses/{first['id']}/input_items").json()["data"]
    assert item == {**added(TOLD_FUNCTION), "id": item["id"]}
    assert item["id"].startswith("at_")
    second = api.create(previous_response_id=first["id"], tools=[CUSTOM])
    assert names_of(second) == ["speak", "look"]
    assert "look" in api.prompt(previous_response_id=second["id"])
    conversation = api.send("POST", "conversations", {"items": [added(FUNCTION)]}).json()["id"]
    assert names_of(api.create(conversation=conversation)) == ["look"]
    assert names_of(api.create(input=[{"type": "item_reference", "id": item["id"]}, USER])) == ["look"]


def newest_tool_counts(api: Api) -> None:
    def described(text: str) -> Body:
        return {**FUNCTION, "description": text}

    first = api.create(input=[added(described("Old.")), added(described("New.")), USER])
    assert [tool["description"] for tool in first["tools"]] == ["New."]
    second = api.create(previous_response_id=first["id"], tools=[described("Mine.")])
    assert [tool["description"] for tool in second["tools"]] == ["Mine."]


def too_many_tools_are_refused(api: Api) -> None:
    many = [{**FUNCTION, "name": f"f{number}"} for number in range(128)]
    api.refused({"input": [added(*many, FUNCTION), USER]}, "input[0].tools")
    api.refused({"input": [added(*many), USER], "tools": [FUNCTION]}, "tools")


def brings_no_secrets(api: Api) -> None:
    server: Body = {"type": "mcp", "server_label": "s", "server_url": "https://tools.example.com/mcp"}
    for name, value in (
        ("authorization", "x"),
        ("headers", {"X-Key": "x"}),
        ("server_url", "https://a.b/?k=x"),
    ):
        api.refused({"input": [added({**server, name: value}), USER]}, f"input[0].tools[0].{name}")


def names_the_item_of_a_tool(api: Api) -> None:
    for tool, field in (
        ({"type": "mcp", "server_label": "nowhere"}, "server_label"),
        ({**FUNCTION, "name": "see", "parameters": {"type": "array"}}, "parameters"),
    ):
        of_item: Body = {"input": [USER, added(CUSTOM, tool)], "tools": [FUNCTION]}
        api.refused(of_item, f"input[1].tools[1].{field}")
        counted = api.send("POST", "responses/input_tokens", {"model": MODEL, **of_item})
        assert check_error(counted, 400, "invalid_request_error")["param"] == f"input[1].tools[1].{field}"
        api.refused({"input": [USER, added(CUSTOM)], "tools": [FUNCTION, tool]}, f"tools[1].{field}")


def updated(**settings: Body) -> Body:
    return {"type": "configuration_update", **settings}


FORM: Body = {"type": "json_schema", "name": "a", "schema": NOTHING, "strict": True}


def updates_settings(api: Api) -> None:
    """From there on, whatever a request says, until the next update."""
    changes = [updated(reasoning={"effort": "high"}), updated(text={"format": FORM})]
    first = api.create(input=[*changes, USER], max_output_tokens=4)
    assert first["reasoning"]["effort"] == "high"
    assert first["text"]["format"]["name"] == "a"
    listed = api.send("GET", f"responses/{first['id']}/input_items?order=asc").json()["data"]
    assert [{k: v for k, v in item.items() if k != "id"} for item in listed[:2]] == changes
    going_on = {"previous_response_id": first["id"], "reasoning": {"effort": "low", "summary": "auto"}}
    second = api.create(**going_on, max_output_tokens=4)
    assert (second["reasoning"]["effort"], second["reasoning"]["summary"]) == ("high", "auto")
    assert second["text"]["format"]["schema"] == NOTHING
    back: list[Body] = [updated(reasoning={"effort": None}, text={"format": {"type": "text"}}), USER]
    third = api.create(previous_response_id=second["id"], input=back)
    assert (third["reasoning"]["effort"], third["text"]["format"]) == (None, {"type": "text"})
    for settings, param in (
        ({}, "input[0].reasoning"),
        ({"reasoning": {"effort": "enormous"}}, "input[0].reasoning.effort"),
        ({"reasoning": {"summary": "auto"}}, "input[0].reasoning.summary"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "input[0].text.format.schema"),
        ({"text": {"format": {"type": "json_object"}}}, "input[0].text.format.type"),
    ):
        api.refused({"input": [updated(**settings), USER]}, param)
    choice = {"structured_outputs": {"choice": ["a"]}}
    api.refused({"input": [updated(text={"format": FORM}), USER], **choice}, "structured_outputs")


def outlast_a_compaction(api: Api) -> None:
    """Of a client that sends the compacted context in place of what it stands for."""
    items = [added(FUNCTION), updated(reasoning={"effort": "high"}), message("assistant", ANSWER), USER]
    trigger: Body = {"type": "compaction_trigger"}
    (sealed,) = api.create(input=[*items, trigger])["output"]
    compacted = api.send("POST", "responses/compact", {"model": MODEL, "input": items}).json()["output"]
    for context in ([sealed], compacted):
        made = api.create(input=[*context, USER], store=False)
        assert (names_of(made), made["reasoning"]["effort"]) == (["look"], "high")


def is_heard_unasked(api: Api) -> None:
    """An output that answers no call is read as that of a call without arguments."""
    output: Body = {
        "type": "function_call_output",
        "name": "bell",
        "namespace": "door",
        "output": "It rings.",
    }
    kept(output, {**output, "output": [TEXT]})(api)
    prompt = api.prompt(input=[USER, output])
    assert prompt.index("door__bell") < prompt.index("It rings.")
    api.refused({"input": [{"type": "function_call_output", "output": "x"}, USER]}, "input[0].call_id")


SEARCH: Body = {
    "type": "tool_search_call",
    "call_id": "call_s",
    "execution": "client",
    "arguments": {"query": "see"},
}
FOUND: Body = {
    "type": "tool_search_output",
    "call_id": "call_s",
    "execution": "client",
    "tools": [{**TOLD_FUNCTION, "name": "see"}],
}
CLIENT_SEARCH: Body = {"type": "tool_search", "execution": "client", "description": None, "parameters": None}
ITEMS = [
    Row("message", "M", kept(*(message(role, TEXT) for role in ("user", "system", "developer")))),
    Row("message easy", "M", in_prompt("Easy.", input=[{"role": "user", "content": "Easy."}])),
    Row("message output", "M", kept(message("assistant", ANSWER, phase="commentary"))),
    Row("message refusal", "M", kept(message("assistant", {"type": "refusal", "refusal": "No."}))),
    Row("input_image", "S", kept(message("user", TEXT, IMAGE))),
    Row("input_file", "S", in_prompt("a.txt", "Hear me", input=[message("user", FILE)])),
    Row("reasoning", "M", kept(REASONING, message("assistant", ANSWER))),
    Row("function_call", "M", kept(CALL, OUTPUT)),
    Row("function_call_output", "M", in_prompt("A cat.", input=[USER, CALL, OUTPUT])),
    Row("custom_tool_call", "M", kept(CUSTOM_CALL, CUSTOM_OUTPUT)),
    Row("custom_tool_call_output", "M", in_prompt("A part.", input=[USER, CUSTOM_CALL, CUSTOM_OUTPUT])),
    Row("item_reference", "S", is_referred_to),
    Row("compaction", "S", is_compacted),
    Row("additional_tools", "S", brings_tools),
    Row("additional_tools newest", "S", newest_tool_counts),
    Row("additional_tools many", "R", too_many_tools_are_refused),
    Row("additional_tools secrets", "R", brings_no_secrets),
    Row("additional_tools paths", "R", names_the_item_of_a_tool),
    Row("additional_tools role", "R", refused("input[0].role", input=[{**added(), "role": "user"}, USER])),
    Row("configuration_update", "S", updates_settings),
    Row("settings compacted", "S", outlast_a_compaction),
    Row("function_call_output unasked", "S", is_heard_unasked),
    *(
        Row(kind, "A", kept({"type": kind, "something": {"of": ["its", "own"]}}))
        for kind in (
            "code_interpreter_call",
            "computer_call",
            "computer_call_output",
            "file_search_call",
            "image_generation_call",
            "program",
            "program_output",
            "web_search_call",
        )
    ),
    Row("tool_search_call", "M", kept(SEARCH, FOUND)),
    Row(
        "tool_search_output",
        "M",
        in_prompt('"name": "see"', input=[USER, SEARCH, FOUND], tools=[CLIENT_SEARCH]),
    ),
    Row("unknown item", "R", refused("input[0].type", input=[{"type": "telepathy"}])),
    Row("unmatched output", "R", refused("input", input=[OUTPUT])),
]


def left_out(kind: str) -> Check:
    """A tool that there is not is left out, and refused if the request insists on it."""
    tool: Body = {"type": kind}
    return all_of(
        told([], tools=[tool]),
        refused("tool_choice", tools=[tool], tool_choice={"type": kind}),
    )


def chosen(choice: object) -> Check:
    return told(tool_choice=choice, tools=[FUNCTION, CUSTOM], max_output_tokens=4)


NAMED: Body = {"type": "function", "name": "look"}
GROUP: Body = {"type": "namespace", "name": "all", "description": "All.", "tools": [FUNCTION]}


TOOLS = [
    Row("function", "M", told([TOLD_FUNCTION], tools=[FUNCTION])),
    Row("custom", "M", told([CUSTOM], tools=[CUSTOM])),
    Row("namespace", "M", in_prompt("look", tools=[GROUP])),
    *(
        Row(kind, "A", left_out(kind))
        for kind in (
            "code_interpreter",
            "computer",
            "computer_use_preview",
            "file_search",
            "image_generation",
            "programmatic_tool_calling",
            "web_search",
            "web_search_2025_08_26",
            "web_search_preview",
            "web_search_preview_2025_03_11",
        )
    ),
    *(Row(f"choice {choice}", "M", chosen(choice)) for choice in ("none", "auto", "required")),
    Row("choice function", "M", chosen(NAMED)),
    Row("choice custom", "M", chosen({"type": "custom", "name": "speak"})),
    Row("choice allowed_tools", "M", chosen({"type": "allowed_tools", "mode": "auto", "tools": [NAMED]})),
    Row("tool_search", "M", told(tools=[TOLD_FUNCTION, CLIENT_SEARCH])),
    Row(
        "function programmatic",
        "R",
        refused("tools[0].allowed_callers", tools=[{**FUNCTION, "allowed_callers": ["programmatic"]}]),
    ),
    Row("defer_loading", "R", refused("tools[0].defer_loading", tools=[{**FUNCTION, "defer_loading": True}])),
    Row(
        "defer_loading namespace",
        "R",
        refused(
            "tools[0].tools[0].defer_loading",
            tools=[{**GROUP, "tools": [{**FUNCTION, "defer_loading": True}]}],
        ),
    ),
    Row(
        "defer_loading added",
        "R",
        refused("input[0].tools[0].defer_loading", input=[added({**FUNCTION, "defer_loading": True}), USER]),
    ),
    Row("choice unknown", "R", refused("tool_choice", tools=[FUNCTION], tool_choice={"type": "telepathy"})),
]

ELSEWHERE = {
    *("mcp", "mcp_list_tools", "mcp_call", "mcp_approval_request", "mcp_approval_response"),
    *("shell", "shell_call", "shell_call_output", "local_shell", "local_shell_call"),
    *("local_shell_call_output", "apply_patch", "apply_patch_call", "apply_patch_call_output"),
    "compaction_trigger",
}
"""What has test files of its own."""


@pytest.mark.parametrize("row", [*ITEMS, *TOOLS], ids=str)
def test_item_or_tool_is_treated_as_its_mark_says(api: Api, row: Row) -> None:
    row.check(api)


def test_no_item_or_tool_of_openai_is_missing_from_the_rows() -> None:
    items = types_in(response_input_item_param.ResponseInputItemParam)
    tools = types_in(tool_param.ToolParam)
    assert (len(items), len(tools)) == (31, 18)
    assert items | tools <= {row.name for row in [*ITEMS, *TOOLS]} | ELSEWHERE
