"""Every item, tool and tool choice of OpenAI's Responses API, and what this server does with each.

What a model makes of them is shown in other files. OpenAI's own types say whether a row is missing.
"""

from collections.abc import Iterator

import pytest
from openai.types.responses import response_input_item_param, tool_param

from tests.acceptance.error_object import check_error
from tests.support.contract import (
    FUNCTION,
    USER,
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


def brings_tools(api: Api) -> None:
    tools: Body = {"type": "additional_tools", "role": "developer", "tools": [FUNCTION]}
    assert "look" in api.prompt(input=[tools, USER])
    assert [tool["name"] for tool in api.create(input=[tools, USER])["tools"]] == ["look"]


def updates_nothing(api: Api) -> None:
    update: Body = {"type": "configuration_update", "reasoning": {"effort": "high"}}
    assert api.create(input=[update, USER])["reasoning"]["effort"] is None


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
    Row("configuration_update", "A", updates_nothing),
    *(
        Row(kind, "A", kept({"type": kind, "something": {"of": ["its", "own"]}}))
        for kind in (
            "apply_patch_call",
            "apply_patch_call_output",
            "code_interpreter_call",
            "computer_call",
            "computer_call_output",
            "file_search_call",
            "image_generation_call",
            "local_shell_call",
            "local_shell_call_output",
            "program",
            "program_output",
            "shell_call",
            "shell_call_output",
            "tool_search_call",
            "tool_search_output",
            "web_search_call",
        )
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


TOLD_FUNCTION = {**FUNCTION, "description": None, "strict": False}
NAMED: Body = {"type": "function", "name": "look"}
GROUP: Body = {"type": "namespace", "name": "all", "description": "All.", "tools": [FUNCTION]}
TOOLS = [
    Row("function", "M", told([TOLD_FUNCTION], tools=[FUNCTION])),
    Row("custom", "M", told([CUSTOM], tools=[CUSTOM])),
    Row("namespace", "M", in_prompt("look", tools=[GROUP])),
    *(
        Row(kind, "A", left_out(kind))
        for kind in (
            "apply_patch",
            "code_interpreter",
            "computer",
            "computer_use_preview",
            "file_search",
            "image_generation",
            "local_shell",
            "programmatic_tool_calling",
            "shell",
            "tool_search",
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
    Row("choice unknown", "R", refused("tool_choice", tools=[FUNCTION], tool_choice={"type": "telepathy"})),
]

ELSEWHERE = {"mcp", "mcp_list_tools", "mcp_call", "mcp_approval_request", "mcp_approval_response"} | {
    "compaction_trigger"
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
