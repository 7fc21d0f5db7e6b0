"""Deferred tools that the model searches for: by the server in the midst of a response, or by the client."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import httpx
import pytest
from openai import BadRequestError, OpenAI
from openai.types.responses import Response

from tests.acceptance.sdk_types import check_event, check_response
from tests.acceptance.test_code_runner import tool_call
from tests.fix_server import SCRIPTED, StartServer
from tests.support.eventually import eventually
from tests.support.fake_mcp import FakeMcp, running_fakes
from tests.support.invariants import check
from tests.support.server_process import MODEL, ServerProcess
from tests.support.sse import Frame, create, join, parse, replay

Body = dict[str, Any]
SENT = "It was sent on Monday."
ANSWERS = [
    (SENT, "Your order was sent on Monday."),
    ("The page tells of a cat.", "It is a cat."),
    ("No tool matches.", "I cannot do that."),
    ('"name": "crm__list_orders", "desc', tool_call("crm__list_orders", customer="Ann")),
    ('"name": "add", "desc', tool_call("add", page=1)),
    ("Which page?", tool_call("tool_search", query="add a page")),
    ("Both at once?", tool_call("tool_search", query="orders") + "\n" + tool_call("look", at="it")),
    ("Sing!", tool_call("tool_search", query="singing in harmony")),
    ("Again and again?", tool_call("tool_search", query="singing")),
    ("Where is my order?", tool_call("tool_search", query="list the orders of a customer")),
]


def function(name: str, description: str, *parameters: str, **more: Any) -> Body:
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in parameters}}
    return {"type": "function", "name": name, "description": description, "parameters": schema} | more


ORDERS = function("list_orders", "Lists a customer's orders.", "customer", strict=False, defer_loading=True)
PROFILE = function(
    "get_profile", "Reads the profile of a person.", "person", strict=False, defer_loading=True
)
CRM = {"type": "namespace", "name": "crm", "description": "All about customers.", "tools": [ORDERS, PROFILE]}
LOOK = function("look", "Looks at something.", "at", strict=False)
PAGES = {"type": "mcp", "server_label": "shop", "require_approval": "never", "defer_loading": True}
PAGES |= {"server_description": "Pages of a book."}
SEARCH = {"type": "tool_search"}
TOOLS = [LOOK, CRM, SEARCH]
CLIENT_SEARCH = {"type": "tool_search", "execution": "client", "description": "Finds tools of the project."}


@pytest.fixture(scope="module")
def shop() -> Iterator[FakeMcp]:
    with running_fakes(1) as (fake,):
        fake.text = "The page tells of a cat."
        yield fake


@pytest.fixture(scope="module")
def settings(shop: FakeMcp) -> dict[str, object]:
    return {"scripted_answers": json.dumps(ANSWERS), "tool_server": f"shop={shop.url}"}


@pytest.fixture(scope="module")
def server(module_database: str, settings: dict[str, object]) -> Iterator[ServerProcess]:
    process = ServerProcess(module_database, settings={**SCRIPTED, **settings})
    try:
        process.start()
        yield process
    finally:
        process.stop()
    check(module_database)


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.api, api_key="none", max_retries=0, timeout=60) as opened:
        yield opened


def ask(client: OpenAI, given: Any = "Where is my order?", **more: Any) -> Response:
    told: Response = client.responses.create(**{"model": MODEL, "input": given, "tools": TOOLS, **more})
    check_response(told.model_dump_json(exclude_unset=True))
    return told


def kinds(told: Response) -> list[str]:
    return [item.type for item in told.output]


def plain(told: Response) -> list[Body]:
    return [item.to_dict() for item in told.output]


def output_of(call: Any, output: str = SENT) -> Body:
    return {"type": "function_call_output", "call_id": call.call_id, "output": output}


def prompt_of(server: ServerProcess, **body: Any) -> str:
    """What the model reads first."""
    more = {"model": MODEL, "enable_response_messages": True, **body}
    answer = httpx.post(f"{server.api}/responses", json=more, timeout=60)
    assert answer.status_code == 200, answer.text
    prompt: str = answer.json()["input_messages"][0]["message"]
    return prompt


def test_server_finds_the_tool_and_the_model_calls_it_in_the_same_response(client: OpenAI) -> None:
    told = ask(client)
    assert (told.status, kinds(told)) == (
        "completed",
        ["tool_search_call", "tool_search_output", "function_call"],
    )
    search, found, call = plain(told)
    assert search["arguments"] == {"query": "list the orders of a customer"}
    assert (search["execution"], found["execution"]) == ("server", "server")
    assert search["call_id"] == found["call_id"]
    assert [(group["name"], [tool["name"] for tool in group["tools"]]) for group in found["tools"]] == [
        ("crm", ["list_orders"])
    ]
    assert (call["namespace"], call["name"]) == ("crm", "list_orders")
    assert [tool.type for tool in told.tools] == ["function", "namespace", "tool_search"]


@pytest.mark.parametrize("declares", [True, False])
@pytest.mark.parametrize("way", ["previous_response_id", "conversation", "input"])
def test_found_tool_stays_loaded_in_the_requests_after_it(
    server: ServerProcess, client: OpenAI, way: str, declares: bool
) -> None:
    first: Body = {"store": way != "input"}
    if way == "conversation":
        first["conversation"] = client.conversations.create().id
    told = ask(client, **first)
    given: list[Any] = [output_of(told.output[-1])]
    if way == "input":
        given = [{"role": "user", "content": "Where is my order?"}, *(item.to_dict() for item in told.output)]
        given.append(output_of(told.output[-1]))
    then = {"previous_response_id": told.id} if way == "previous_response_id" else first
    tools = TOOLS if declares else []
    answer = ask(client, given, tools=tools, **then)
    assert answer.output_text == "Your order was sent on Monday."
    then = {"previous_response_id": answer.id} if way == "previous_response_id" else first
    if way != "input":
        assert "crm__list_orders" in prompt_of(server, input="Go on.", tools=tools, **then)


def test_prompt_has_the_search_and_no_deferred_tool(server: ServerProcess) -> None:
    prompt = prompt_of(server, input="Hello.", tools=[*TOOLS, PAGES])
    assert [name for name in ("look(", "tool_search(query: string)") if name not in prompt] == []
    assert [name for name in ("list_orders", "get_profile", "find", "add") if name in prompt] == []


def test_what_is_found_stands_at_the_end_and_the_prompt_before_it_stays(
    server: ServerProcess, client: OpenAI
) -> None:
    before = prompt_of(server, input="Where is my order?", tools=TOOLS)
    told = ask(client)
    asked = {"previous_response_id": told.id, "input": [output_of(told.output[-1])], "tools": TOOLS}
    after = prompt_of(server, **asked)
    assert after.startswith(before)
    assert '"name": "crm__list_orders"' in after[len(before) :]
    assert "get_profile" not in after


def test_mcp_tool_is_found_called_and_answered_in_one_response(client: OpenAI, shop: FakeMcp) -> None:
    made = len(shop.calls)
    told = ask(client, "Which page?", tools=[PAGES, CRM, SEARCH])
    assert kinds(told) == [
        "mcp_list_tools",
        "tool_search_call",
        "tool_search_output",
        "mcp_call",
        "message",
    ]
    assert told.output_text == "It is a cat."
    assert [call["arguments"] for call in shop.calls[made:]] == [{"page": 1}]
    (found,) = plain(told)[2]["tools"]
    assert (found["server_label"], found["allowed_tools"]) == ("shop", ["add"])


def test_search_without_a_match_says_so_to_the_model(client: OpenAI) -> None:
    told = ask(client, "Sing!")
    assert told.output[1].to_dict()["tools"] == []
    assert told.output_text == "I cannot do that."


def test_searches_count_as_calls_and_end_at_the_limit(client: OpenAI) -> None:
    told = ask(client, "Where is my order?", max_tool_calls=1)
    assert kinds(told)[:2] == ["tool_search_call", "tool_search_output"]
    assert "tool_search_call" not in kinds(told)[2:]


def test_clients_call_beside_a_search_ends_the_response_with_both(client: OpenAI) -> None:
    told = ask(client, "Both at once?")
    assert sorted(kinds(told)) == ["function_call", "tool_search_call", "tool_search_output"]
    call = next(item for item in told.output if item.type == "function_call")
    answer = ask(client, [output_of(call, "Nothing.")], previous_response_id=told.id)
    assert answer.output[-1].to_dict()["name"] == "list_orders"


def check_stream(frames: list[Frame]) -> None:
    for frame in frames:
        check_event(frame.raw.decode().partition("data: ")[2])
    assert [frame.number for frame in frames] == list(range(len(frames)))
    done = [frame.json for frame in frames if frame.event == "response.output_item.done"]
    told = frames[-1].json["response"]["output"]
    assert [told[event["output_index"]] for event in done] == [event["item"] for event in done]
    assert len(done) == len(told)


def test_stream_has_each_item_of_a_search_and_is_read_again_from_anywhere(server: ServerProcess) -> None:
    with create(server.url, {"model": MODEL, "input": "Where is my order?", "tools": TOOLS}) as sent:
        frames = parse(sent.read())
    check_stream(frames)
    items = [
        (frame.event.rpartition(".")[2], frame.json["item"]["type"])
        for frame in frames
        if "output_item" in frame.event
    ]
    search, found = "tool_search_call", "tool_search_output"
    assert items[:4] == [("added", search), ("done", search), ("added", found), ("done", found)]
    response = frames[0].json["response"]["id"]
    for frame in frames[1:-1]:
        with replay(server.url, response, frame.number) as again:
            assert again.read() == join(frames[frame.number + 1 :])


def is_item(frame: Frame, event: str, kind: str) -> bool:
    return frame.event == f"response.output_item.{event}" and frame.json["item"]["type"] == kind


MOMENTS: dict[str, Callable[[Frame], bool]] = {
    "searching": partial(is_item, event="added", kind="tool_search_call"),
    "found": partial(is_item, event="done", kind="tool_search_output"),
    "calling": partial(is_item, event="added", kind="mcp_call"),
    "answering": lambda frame: frame.event == "response.output_text.delta",
}


def test_response_goes_on_after_a_kill_around_its_search(
    start_server: StartServer, settings: dict[str, object]
) -> None:
    server = start_server(**settings, scripted_step_seconds=0.003, lease_seconds=2)
    body = {"model": MODEL, "input": "Which page?", "tools": [PAGES, SEARCH], "background": True, "seed": 5}

    def begun() -> str:
        answer = httpx.post(f"{server.api}/responses", json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["id"])

    def ended(response: str) -> Body:
        told: Body = httpx.get(f"{server.api}/responses/{response}").json()
        return told if told["status"] in ("completed", "failed", "incomplete") else {}

    def unnamed(told: Body) -> str:
        return json.dumps(told["output"]).replace(told["id"].partition("_")[2], "ID")

    uncut = eventually(partial(ended, begun()), within=60)
    for name, is_moment in MOMENTS.items():
        cut = begun()
        with replay(server.url, cut) as reader:
            seen = []
            for frame in reader:
                seen.append(frame)
                if is_moment(frame):
                    break
            server.kill()
        server.start()
        told = eventually(partial(ended, cut), within=60)
        assert (told["status"], unnamed(told)) == ("completed", unnamed(uncut)), name
        assert told["usage"]["output_tokens"] == uncut["usage"]["output_tokens"], name
        with replay(server.url, cut) as again:
            frames = parse(again.read())
        assert frames[: len(seen)] == seen
        check_stream(frames)


@pytest.mark.parametrize("way", ["previous_response_id", "conversation", "input"])
def test_client_answers_the_search_and_the_model_calls_what_it_was_given(client: OpenAI, way: str) -> None:
    first: Body = {"store": way != "input"}
    if way == "conversation":
        first["conversation"] = client.conversations.create().id
    told = ask(client, tools=[CLIENT_SEARCH], **first)
    (search,) = told.output
    assert search.type == "tool_search_call"
    assert (told.status, search.execution, search.status) == ("completed", "client", "completed")
    assert search.arguments == {"query": "list the orders of a customer"}
    given: list[Any] = [
        {
            "type": "tool_search_output",
            "execution": "client",
            "call_id": search.call_id,
            "status": "completed",
            "tools": [CRM],
        }
    ]
    if way == "input":
        given = [{"role": "user", "content": "Where is my order?"}, search.to_dict(), *given]
    then = {"previous_response_id": told.id} if way == "previous_response_id" else first
    called = ask(client, given, tools=[CLIENT_SEARCH], **then)
    call = called.output[-1].to_dict()
    assert (call["type"], call["namespace"], call["name"]) == ("function_call", "crm", "list_orders")
    if way == "input":
        return
    then = {"previous_response_id": called.id} if way == "previous_response_id" else first
    answer = ask(client, [output_of(called.output[-1])], tools=[CLIENT_SEARCH], **then)
    assert answer.output_text == "Your order was sent on Monday."


def test_clients_search_has_its_own_parameters_or_those_that_openais_clients_read(
    server: ServerProcess,
) -> None:
    assert "tool_search(paths: array)" in prompt_of(server, input="Hello.", tools=[CLIENT_SEARCH, CRM])
    schema = {"type": "object", "properties": {"goal": {"type": "string"}}}
    prompt = prompt_of(server, input="Hello.", tools=[{**CLIENT_SEARCH, "parameters": schema}])
    assert "tool_search(goal: string)" in prompt


def test_tools_of_a_clients_search_may_be_an_mcp_server(client: OpenAI) -> None:
    told = ask(client, "Which page?", tools=[CLIENT_SEARCH])
    call_id = told.output[0].to_dict()["call_id"]
    given = {"type": "tool_search_output", "call_id": call_id, "tools": [{**PAGES, "allowed_tools": ["add"]}]}
    answer = ask(client, [given], previous_response_id=told.id, tools=[CLIENT_SEARCH])
    assert kinds(answer) == ["mcp_list_tools", "mcp_call", "message"]


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("tools[0].tools[0].defer_loading", {"tools": [CRM]}),
        ("tools[0].defer_loading", {"tools": [PAGES]}),
        ("tools[0].allowed_callers", {"tools": [{**LOOK, "allowed_callers": ["programmatic"]}]}),
        ("tools[0].execution", {"tools": [{"type": "tool_search", "execution": "nobody"}]}),
        ("tools", {"tools": [SEARCH, SEARCH, CRM]}),
        ("tool_choice", {"tool_choice": {"type": "function", "name": "list_orders"}}),
        ("input", {"input": [{"type": "tool_search_output", "call_id": "call_1", "tools": [CRM]}]}),
        (
            "input[1].tools[0].allowed_callers",
            {
                "input": [
                    {"type": "tool_search_call", "call_id": "call_1", "arguments": {}},
                    {
                        "type": "tool_search_output",
                        "call_id": "call_1",
                        "tools": [{**LOOK, "name": "see", "allowed_callers": ["programmatic"]}],
                    },
                ]
            },
        ),
    ],
)
def test_what_can_never_be_called_is_refused_by_its_field(client: OpenAI, param: str, body: Body) -> None:
    with pytest.raises(BadRequestError) as refused:
        ask(client, **{"given": body.pop("input", "Hello."), **body})
    assert refused.value.param == param


def test_tool_of_both_callers_and_with_an_output_schema_is_called_and_repeated(client: OpenAI) -> None:
    tool = {**LOOK, "allowed_callers": ["direct", "programmatic"], "output_schema": {"type": "object"}}
    told = ask(client, tools=[tool], tool_choice="required")
    assert told.output[-1].type == "function_call"
    assert told.tools[0].to_dict() == tool


def test_members_that_two_searches_of_the_client_find_in_a_namespace_are_both_loaded(
    server: ServerProcess,
) -> None:
    given: list[Body] = []
    for name, tool in (("call_a", ORDERS), ("call_b", PROFILE)):
        given.append({"type": "tool_search_call", "call_id": name, "arguments": {}})
        given.append({"type": "tool_search_output", "call_id": name, "tools": [{**CRM, "tools": [tool]}]})
    prompt = prompt_of(server, input=given, tools=[CLIENT_SEARCH])
    lists, _, results = prompt.partition("</tools>")
    assert "crm__" not in lists
    assert [
        name for name in ("crm__list_orders", "crm__get_profile") if f'"name": "{name}"' not in results
    ] == []
    assert "crm__get_profile(person: string)" in prompt_of(server, input=given, tools=[])


def test_search_that_is_cut_off_is_incomplete_and_the_next_request_goes_on(client: OpenAI) -> None:
    told = ask(client, max_output_tokens=20)
    assert (told.status, kinds(told)) == ("incomplete", ["tool_search_call"])
    assert told.output[0].to_dict()["status"] == "incomplete"
    answer = ask(client, "Sing!", previous_response_id=told.id)
    assert answer.status == "completed"


def test_found_tool_whose_schema_cannot_be_enforced_fails_the_response(client: OpenAI) -> None:
    wrong = {
        **ORDERS,
        "strict": True,
        "parameters": {"type": "object", "properties": {"customer": {"$ref": "#/x"}}},
    }
    told = ask(client, tools=[{**CRM, "tools": [wrong]}, SEARCH])
    assert (told.status, told.error is not None) == ("failed", True)


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_choice_of_allowed_tools_may_name_deferred_ones_and_the_search(client: OpenAI, mode: str) -> None:
    allowed = [SEARCH, {"type": "function", "name": "list_orders"}]
    told = ask(client, tool_choice={"type": "allowed_tools", "mode": mode, "tools": allowed})
    assert kinds(told) == ["tool_search_call", "tool_search_output", "function_call"]
