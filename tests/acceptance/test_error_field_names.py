"""A mistake is named by the field that the caller sent, in whichever API and under whichever name."""

import copy
import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai import BadRequestError, OpenAI

from tests.acceptance.error_object import check_error
from tests.fix_server import SCRIPTED, Connect, StartServer
from tests.support.server_process import MODEL, ServerProcess

HELLO: dict[str, Any] = {"role": "user", "content": "Hi"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CUSTOM_CALL = {"id": "call_2", "type": "custom", "custom": {"name": "c", "input": "x"}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
GRAMMAR = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "a+"}}
CUSTOM = {"type": "custom", "custom": {"name": "c", "format": GRAMMAR}}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "auto"}}
PLACE = {"type": "object", "properties": {"a": {"type": "string"}}}
ARRAY = {"type": "array", "items": {"type": "string"}}
CIRCLE = {"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}, "required": ["a"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": PLACE, "strict": True}}
RICH: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": [{"type": "text", "text": "Be kind."}]},
        HELLO,
        {"role": "assistant", "content": "Yes.", "tool_calls": [CALL, CUSTOM_CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "1"},
        {"role": "tool", "tool_call_id": "call_2", "content": [{"type": "text", "text": "2"}]},
        {"role": "user", "content": [{"type": "text", "text": "And?"}]},
    ],
    "tools": [TOOL, CUSTOM],
    "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [
        {"type": "function", "function": {"name": "f"}}
    ]}},
    "response_format": FORMAT,
    "max_completion_tokens": 1,
    "metadata": {"a": "b"},
    "logit_bias": {"7": 1},
    "stop": ["stop"],
    "reasoning_effort": "low",
    "verbosity": "low",
    "service_tier": "auto",
    "safety_identifier": "s" * 128,
    "stream_options": None,
}  # fmt: skip


MESSAGES: list[tuple[dict[str, Any], str]] = [
    ({"role": "tool", "content": "x"}, "tool_call_id"),
    ({"role": "tool", "tool_call_id": "call_1"}, "content"),
    ({"role": "tool", "tool_call_id": 7, "content": "x"}, "tool_call_id"),
    ({"role": "tool", "tool_call_id": "call_1", "content": [{"type": "zz"}]}, "content[0].type"),
    ({"role": "user"}, "content"),
    ({"role": "user", "content": [{"type": "file", "file": {}}]}, "content[0].file.file_data"),
    ({"role": "user", "content": [{"type": "file"}]}, "content[0].file"),
    (
        {"role": "user", "content": [{"type": "file", "file": {"file_data": "?", "detail": "zz"}}]},
        "content[0].file.detail",
    ),
    ({"role": "user", "content": [{"type": "image_url"}]}, "content[0].image_url"),
    ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "content[0].image_url.url"),
    (
        {"role": "user", "content": [{**PICTURE, "image_url": {"url": 7}}]},
        "content[0].image_url.url",
    ),
    (
        {"role": "user", "content": [{**PICTURE, "image_url": {"url": "data:,x", "detail": "zz"}}]},
        "content[0].image_url.detail",
    ),
    ({"role": "user", "content": [{"type": "text"}]}, "content[0].text"),
    ({"role": "assistant", "tool_calls": [{**CALL, "id": None}]}, "tool_calls[0].id"),
    ({"role": "assistant", "tool_calls": [{**CALL, "type": "zz"}]}, "tool_calls[0].type"),
    ({"role": "assistant", "tool_calls": [{"id": "call_1"}]}, "tool_calls[0].function"),
    (
        {"role": "assistant", "tool_calls": [CALL, {**CALL, "function": {"arguments": "{}"}}]},
        "tool_calls[1].function.name",
    ),
    (
        {"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "f"}}]},
        "tool_calls[0].function.arguments",
    ),
    (
        {"role": "assistant", "tool_calls": [{**CUSTOM_CALL, "custom": {"name": "c", "input": 7}}]},
        "tool_calls[0].custom.input",
    ),
]
"""A chat's third message, and the path of what is wrong in it."""
TOOLS: list[tuple[dict[str, Any], str]] = [
    ({"type": "function", "function": {}}, "function.name"),
    ({"type": "function", "function": {"name": "a b"}}, "function.name"),
    ({"type": "function", "function": {"name": "f", "parameters": 7}}, "function.parameters"),
    (
        {"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}},
        "function.parameters",
    ),
    (
        {"type": "function", "function": {"name": "f", "parameters": CIRCLE, "strict": True}},
        "function.parameters",
    ),
    ({"type": "zz"}, "type"),
    (
        {"type": "custom", "custom": {"name": "c", "format": {"type": "grammar", "grammar": {}}}},
        "custom.format.grammar.syntax",
    ),
    (
        {
            "type": "custom",
            "custom": {
                "name": "c",
                "format": {"type": "grammar", "grammar": {"syntax": "regex", "definition": "("}},
            },
        },
        "custom.format.grammar.definition",
    ),
    ({"type": "custom", "custom": {"name": "c", "format": {"type": "zz"}}}, "custom.format.type"),
]
"""A chat's second tool, and the path of what is wrong in it."""
CHOICES: list[tuple[dict[str, Any], str]] = [
    ({"type": "function"}, "function.name"),
    ({"type": "function", "function": {}}, "function.name"),
    ({"type": "custom", "custom": {}}, "custom.name"),
    ({"type": "allowed_tools", "allowed_tools": {"mode": "zz", "tools": []}}, "allowed_tools.mode"),
    (
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "function"}]}},
        "allowed_tools.tools[0].function.name",
    ),
]
"""A tool choice, and the path of what is wrong in it."""
SCHEMAS: list[dict[str, Any]] = [
    {"type": "zz"},
    CIRCLE,
    {"enum": []},
    {"$ref": "#"},
    {"allOf": [{"$ref": "#"}]},
]
OTHERS: list[tuple[dict[str, Any], str]] = [
    ({"response_format": {"type": "structural_tag", "format": {"type": "zz"}}}, "response_format"),
    ({"guided_regex": "("}, "guided_regex"),
    ({"guided_choice": []}, "guided_choice"),
    ({"generation_config": {"eos_token_id": 99_999_999}}, "generation_config.eos_token_id"),
    ({"generation_config": {"stop_strings": ""}}, "generation_config.stop_strings"),
    ({"min_tokens": 9, "max_tokens": 3}, "min_tokens"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", ""]}, "stop"),
    ({"service_tier": 7}, "service_tier"),
    ({"metadata": {"a": "b", "c": 7}}, "metadata.c"),
    ({"logit_bias": {"7": 1, "99999999": 1}}, "logit_bias.99999999"),
    ({"logit_bias": {"7": 1000}}, "logit_bias.7"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
    ({"messages": [{"role": "user", "content": "x " * 200_000}]}, "messages"),
]


def broken_rows() -> Iterator[tuple[dict[str, Any], str]]:
    """Chats that are refused, and the path of the mistake."""
    calls = {"role": "assistant", "tool_calls": [CALL]}
    for message, field in MESSAGES:
        yield {"messages": [HELLO, calls, message]}, f"messages[2].{field}"
    for tool, field in TOOLS:
        yield {"tools": [{"type": "function", "function": {"name": "other"}}, tool]}, f"tools[1].{field}"
    for choice, field in CHOICES:
        yield {"tools": [TOOL], "tool_choice": choice}, f"tool_choice.{field}"
    for schema in SCHEMAS:
        form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
        yield {"response_format": form}, "response_format.json_schema.schema"
    strict = {"name": "n", "schema": ARRAY, "strict": True}
    form = {"type": "json_schema", "json_schema": strict}
    yield {"response_format": form}, "response_format.json_schema.schema"
    yield from OTHERS


ROWS = list(broken_rows())
OUR_WORDS = re.compile(r"llguidance|whitespace_pattern|json_0|x-guidance|\bcall_id\b|text\.format|\[\.\.\.\]")


@pytest.fixture
def client(scripted_server: ServerProcess, connect: Connect) -> OpenAI:
    return connect(scripted_server)


@pytest.mark.parametrize(("body", "param"), ROWS, ids=[f"{n}-{param}" for n, (_, param) in enumerate(ROWS)])
def test_a_broken_chat_is_refused_by_the_path_in_its_own_body(
    client: OpenAI, body: dict[str, Any], param: str
) -> None:
    whole = {"model": MODEL, "messages": [HELLO], **body}
    with pytest.raises(BadRequestError) as refused:
        client.post("/chat/completions", body=whole, cast_to=object)
    error: Any = refused.value.body
    assert error["param"] == param, error
    assert not OUR_WORDS.search(error["message"]), error


def paths(value: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Every path below a value, with the object or list that has it, and its key."""
    keys: Any = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        own = f"{path}[{key}]" if isinstance(key, int) else f"{path}.{key}" if path else key
        yield own, value, key
        yield from paths(value[key], own)


def test_whatever_is_wrong_in_a_chat_is_named_by_its_own_path_or_a_part_of_it(
    scripted_server: ServerProcess,
) -> None:
    with httpx.Client(base_url=scripted_server.api, timeout=60) as http:
        answer = http.post("/chat/completions", json={"model": MODEL, **RICH})
        assert answer.status_code == 200, answer.text
        refused = 0
        for path in [path for path, _, _ in paths(RICH)]:
            for wrong in (7, ...):
                body = copy.deepcopy(RICH)
                _, holder, key = next(row for row in paths(body) if row[0] == path)
                if wrong is ...:
                    del holder[key]
                else:
                    holder[key] = wrong
                answer = http.post("/chat/completions", json={"model": MODEL, **body})
                if answer.status_code == 200:
                    continue
                refused += 1
                param = check_error(answer, 400, "invalid_request_error")["param"]
                parents = {path[: match.start()] for match in re.finditer(r"[.\[]", path)}
                near = param is not None and (param.startswith(path) or param in parents)
                # Calls are looked for by name, and outputs by id; a type says which sibling there is.
                near = near or str(param).rpartition(".")[0] == path.rpartition(".")[0] != ""
                near = near or param in ("tool_choice", "tools", "messages")
                near = near or re.sub(r"\d", "", str(param)).startswith(re.sub(r"\d", "", path))
                assert near, (path, wrong, answer.json())
        assert refused > 60


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"guided_regex": "("}, "guided_regex"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": 7}}}},
            "response_format.json_schema.schema",
        ),
        ({"n": 16, "logprobs": 20, "max_tokens": 10**6}, "logprobs"),
        ({"prompt": "x " * 200_000}, "prompt"),
        ({"generation_config": {"eos_token_id": [99_999_999]}}, "generation_config.eos_token_id"),
        ({"logit_bias": {"99999999": 1}}, "logit_bias.99999999"),
        ({"stop": ""}, "stop"),
    ],
)
def test_a_broken_completion_is_refused_by_its_own_field(
    client: OpenAI, body: dict[str, Any], param: str
) -> None:
    whole = {"model": MODEL, "prompt": "Hi", **body}
    with pytest.raises(BadRequestError) as refused:
        client.post("/completions", body=whole, cast_to=object)
    assert refused.value.param == param, refused.value.body


FUNCTION = {"type": "function", "name": "f"}
ITEM = {"role": "user", "content": "Hi"}


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"guided_regex": "("}, "guided_regex", "invalid_value"),
        ({"text": {"format": {}}}, "text.format.type", "missing_required_parameter"),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"$ref": "#"}}}},
            "text.format.schema",
            "invalid_json_schema",
        ),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": CIRCLE, "strict": True}}},
            "text.format.schema",
            "invalid_json_schema",
        ),
        (
            {"tools": [FUNCTION, {**FUNCTION, "name": "g", "strict": True, "parameters": {"$ref": "#"}}]},
            "tools[1].parameters",
            "invalid_function_parameters",
        ),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": ARRAY, "strict": True}}},
            "text.format.schema",
            "invalid_json_schema",
        ),
        (
            {"tools": [{**FUNCTION, "strict": True, "parameters": {"type": ["object", "null"]}}]},
            "tools[0].parameters",
            "invalid_function_parameters",
        ),
        (
            {"tools": [{"type": "namespace", "name": "n", "tools": [
                {**FUNCTION, "parameters": {"anyOf": [{"type": "array"}]}}
            ]}]},
            "tools[0].tools[0].parameters",
            "invalid_function_parameters",
        ),
        (
            {"tools": [{**FUNCTION, "parameters": {"type": "object", "properties": []}}]},
            "tools[0].parameters",
            "invalid_function_parameters",
        ),
        ({"tools": [FUNCTION], "tool_choice": {"type": "function"}}, "tool_choice.name", None),
        ({"tools": [FUNCTION], "tool_choice": {"type": "mcp"}}, "tool_choice.server_label", None),
        ({"input": [{**ITEM, "id": 7}]}, "input[0].id", "invalid_type"),
        ({"input": [{**ITEM, "status": "zz"}]}, "input[0].status", "invalid_value"),
        ({"input": [{"role": "assistant", "content": "x", "phase": "zz"}]}, "input[0].phase", None),
        ({"input": [ITEM, {"type": "reasoning", "summary": [], "id": 7}]}, "input[1].id", None),
        (
            {"input": [{"type": "function_call", "id": 7, "call_id": "c", "name": "f", "arguments": "{}"}]},
            "input[0].id",
            None,
        ),
        ({"input": [{"type": "computer_call", "id": 7}]}, "input[0].id", None),
        ({"input": [{"type": "computer_call", "call_id": 7}]}, "input[0].call_id", None),
        ({"input": [{"type": "web_search_call", "id": "ws_1", "status": "zz"}]}, "input[0].status", None),
        ({"input": [{"type": "code_interpreter_call", "id": 7, "status": "completed"}]}, "input[0].id", None),
        ({"input": [{"type": "compaction", "encrypted_content": "x", "id": 7}]}, "input[0].id", None),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]},
         "input[0].content[0].file_data", "missing_required_parameter"),
    ],
)  # fmt: skip
def test_a_broken_response_is_refused_before_it_is_accepted(
    client: OpenAI, body: dict[str, Any], param: str, code: str | None
) -> None:
    with pytest.raises(BadRequestError) as refused:
        client.post("/responses", body={"model": MODEL, "input": "Hi", **body}, cast_to=object)
    error: Any = refused.value.body
    assert error["param"] == param, error
    assert code is None or error["code"] == code
    assert not OUR_WORDS.search(error["message"].replace(param, "")), error


def test_a_strict_format_of_no_object_is_refused_in_openai_s_words_and_a_loose_one_is_served(
    client: OpenAI,
) -> None:
    form: Any = {"type": "json_schema", "name": "n", "schema": ARRAY}
    with pytest.raises(BadRequestError) as refused:
        client.responses.create(
            model=MODEL, input="Hi", extra_body={"text": {"format": {**form, "strict": True}}}
        )
    words = """schema must be a JSON Schema of 'type: "object"', got 'type: "array"'."""
    error: Any = refused.value.body
    assert error["message"] == f"Invalid schema for response_format 'n': {words}"
    by_reference = {"$ref": "#/$defs/a", "$defs": {"a": PLACE}}
    objects = [{**form, "strict": True, "schema": one} for one in (PLACE, by_reference, {"anyOf": [PLACE]})]
    served: list[Any] = [{"text": {"format": one}} for one in (form, *objects)]
    for more in (*served, {"structured_outputs": {"json": ARRAY}}, {"guided_json": ARRAY}):
        answer = client.responses.create(model=MODEL, input="Hi", max_output_tokens=8, extra_body=more)
        assert answer.status in ("completed", "incomplete")


def test_functions_whose_arguments_may_be_an_object_are_served(client: OpenAI) -> None:
    loose: list[Any] = [{}, {"anyOf": [{"type": "null"}, PLACE]}, {"type": ["object", "null"]}, PLACE, None]
    for parameters in loose:
        answer = client.post(
            "/responses",
            body={"model": MODEL, "input": "Hi", "tools": [{**FUNCTION, "parameters": parameters}]},
            cast_to=httpx.Response,
        )
        assert json.loads(answer.content)["status"] in ("completed", "incomplete")


def test_tools_that_the_model_is_not_offered_are_named_in_the_response(client: OpenAI) -> None:
    tools: Any = [{"type": "web_search"}, {"type": "file_search", "vector_store_ids": ["vs_1"]}, FUNCTION]
    made: Any = client.responses.create(model=MODEL, input="Hi", tools=tools)
    assert made.ignored_tools == ["file_search", "web_search"]
    assert [tool.type for tool in made.tools] == ["function"]
    again: Any = client.responses.retrieve(made.id)
    assert again.ignored_tools == made.ignored_tools
    first: Any = next(iter(client.responses.create(model=MODEL, input="Hi", tools=tools, stream=True)))
    assert first.response.ignored_tools == made.ignored_tools
    plain = client.responses.create(model=MODEL, input="Hi", tools=tools[2:])
    assert "ignored_tools" not in plain.to_dict()


def test_tools_that_nobody_serves_are_refused_where_the_operator_says_so(
    start_server: StartServer, connect: Connect
) -> None:
    client = connect(start_server(**SCRIPTED, unserved_tools="refuse"))
    with pytest.raises(BadRequestError) as refused:
        client.responses.create(model=MODEL, input="Hi", tools=[{"type": "web_search"}])
    assert refused.value.param == "tools[0].type"
    assert refused.value.code == "unsupported_value"


def test_the_defaults_and_limits_of_openai_are_those_here(client: OpenAI) -> None:
    answer = client.responses.create(model=MODEL, input="Hi", safety_identifier="s" * 128)
    assert answer.text is not None
    assert (answer.text.verbosity, answer.safety_identifier) == ("medium", "s" * 128)
    chat = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Hi"}], max_tokens=3, max_completion_tokens=3
    )
    assert chat.choices[0].finish_reason == "length"
