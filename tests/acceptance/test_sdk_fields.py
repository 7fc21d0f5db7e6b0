"""Every field, item, part, tool, choice, event and `include` value of the OpenAI SDK has its verdict here.

`tests/support/sdk_verdicts.toml` has the verdicts. What a newer SDK brings, or takes away, is missing from it
or too much in it. A running server is asked for each: what works or is ignored is in a body that is answered,
what is refused is a 400 that names the field.
"""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest

from server.protocol.parameter_support import TABLES, Endpoint
from tests.acceptance.error_object import check_error
from tests.support import sdk_fields
from tests.support.contract import ASK, USER, Api, Body
from tests.support.sdk_examples import CHOICES, DEFAULTS, EXAMPLES, ITEMS, PARTS, QUERIES, REFUSED, TOOLS
from tests.support.server_process import MODEL, ServerProcess

TABLE = Path(sdk_fields.__file__).with_name("sdk_verdicts.toml")
Verdict = Literal["works", "ignored", "refused"]
SECTIONS: dict[str, dict[str, Any]] = tomllib.loads(TABLE.read_text(encoding="utf-8"))


def verdicts(section: str) -> dict[str, Verdict]:
    rows = SECTIONS[section]
    return {name: verdict for verdict in ("works", "ignored", "refused") for name in rows.get(verdict, ())}


def named(section: str, verdict: Verdict) -> list[str]:
    return sorted(name for name, given in verdicts(section).items() if given == verdict)


@pytest.fixture(scope="module")
def api(scripted_server: ServerProcess) -> Iterator[Api]:
    made = Api(scripted_server)
    yield made
    made.close()


def test_every_field_of_the_sdk_has_a_verdict_and_nothing_else_has_one() -> None:
    of_sdk = {name: set(fields) for name, fields in sdk_fields.sections().items()}
    of_sdk |= {
        "include": sdk_fields.includables(),
        "tool_choice": sdk_fields.choices(),
        "events": sdk_fields.events(),
    }
    assert SECTIONS.keys() == of_sdk.keys()
    differing = {name: sorted(fields ^ verdicts(name).keys()) for name, fields in of_sdk.items()}
    assert {name: fields for name, fields in differing.items() if fields} == {}


def test_what_is_ignored_or_refused_has_a_reason_and_no_field_two_verdicts() -> None:
    for name, rows in SECTIONS.items():
        listed = [field for verdict in ("works", "ignored", "refused") for field in rows.get(verdict, ())]
        assert len(listed) == len(set(listed)), name
        for verdict in ("ignored", "refused"):
            given = rows.get(verdict, {})
            reasons = [rows["reason"]] if isinstance(given, list) else given.values()
            assert all(reasons), name


@pytest.mark.parametrize(
    ("endpoint", "section"),
    [
        ("responses", "POST /responses"),
        ("chat", "POST /chat/completions"),
        ("completions", "POST /completions"),
    ],
)
def test_the_page_of_parameters_says_the_same_of_each(endpoint: Endpoint, section: str) -> None:
    top = {name: it for name, it in verdicts(f"parameters {section}").items() if "." not in name}
    assert {name: TABLES[endpoint][name].verdict for name in top} == top


def paths(value: object, path: str = "") -> Iterator[str]:
    """The paths of all fields of a JSON value, as `sdk_fields` has them."""
    if isinstance(value, list):
        for element in value:
            yield from paths(element, path)
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield f"{path}{name}"
            yield from paths(inner, f"{path}{name}.")


@pytest.fixture(scope="module")
def names(api: Api) -> dict[str, str]:
    """What bodies refer to, by the words that stand for it in the examples."""
    conversation = api.send("POST", "conversations", {}).json()["id"]
    chat = {"model": MODEL, "store": True, "max_tokens": 2, "messages": [USER]}
    return {
        "chat": api.send("POST", "chat/completions", chat).json()["id"],
        "conversation": conversation,
        "response": api.create(max_output_tokens=2)["id"],
    }


def filled(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {name: filled(inner, names) for name, inner in value.items()}
    return names.get(value, value) if isinstance(value, str) else value


STORED_PROMPT = {"prompt.id", "prompt.variables", "prompt.version"}
"""Fields that need a prompt in the store; `test_prompts.py` has one."""


@pytest.mark.parametrize("section", EXAMPLES)
def test_every_field_of_a_parameter_that_is_not_refused_is_taken(
    api: Api, names: dict[str, str], section: str
) -> None:
    covered: set[str] = set()
    for example in EXAMPLES[section]:
        covered |= set(paths(example))
        body = {"model": MODEL, **DEFAULTS[section], **filled(example, names)}
        answer = api.send("POST", section.removeprefix("POST /"), body)
        assert answer.status_code == 200, (example, answer.text)
    listed = verdicts(f"parameters {section}")
    inner = {name for name, it in listed.items() if it != "refused" and ("." in name or "tokens" in section)}
    assert inner - covered - STORED_PROMPT == set()


@pytest.mark.parametrize("section", QUERIES)
def test_every_parameter_of_a_list_or_a_look_up_is_taken(
    api: Api, names: dict[str, str], section: str
) -> None:
    listed = verdicts(f"parameters {section}").keys() - {"conversation_id"}  # which is in the address
    assert listed - set(QUERIES[section]) == set()
    address = section.removeprefix("GET /").replace("{id}", "{}", 1)
    kind = "conversation" if "conversations" in section else "chat" if "chat" in section else "response"
    query = "&".join(f"{name}={value}" for name, value in QUERIES[section].items())
    answer = api.send("GET", f"{address.format(names[kind])}?{query}")
    assert answer.status_code == 200, answer.text


def test_every_refused_field_of_a_chats_messages_is_named(api: Api) -> None:
    listed = {name for name in named("parameters POST /chat/completions", "refused") if "messages." in name}
    inner = {name for name in listed if not any(other.startswith(f"{name}.") for other in listed)}
    assert inner == {name for names in REFUSED for name in names.split()}
    for body, param in REFUSED.values():
        answer = api.send("POST", "chat/completions", {"model": MODEL, **body})
        assert check_error(answer, 400, "invalid_request_error")["param"] == param


def test_no_other_field_of_an_object_is_refused_alone() -> None:
    """A parameter that is refused is refused with all that is in it, as `test_parameters.py` shows."""
    for section in EXAMPLES:
        listed = verdicts(f"parameters {section}")
        for name in named(f"parameters {section}", "refused"):
            top = name.partition(".")[0]
            assert listed[top] == "refused" or top == "messages", name


NOT_STORED = {"compaction_trigger", "item_reference"}
"""Items that no response has; `test_context_management.py` and `test_contract_items.py` send them."""


def examples_of_item(kind: str) -> list[Body]:
    if kind in ITEMS:
        return ITEMS[kind]
    return [sdk_fields.sample(one) | {"type": kind} for one in sdk_fields.by_type(sdk_fields.ITEMS)[kind]]


@pytest.mark.parametrize("kind", sorted(sdk_fields.by_type(sdk_fields.ITEMS).keys() - NOT_STORED))
def test_every_field_of_an_item_is_taken_and_given_back(api: Api, kind: str) -> None:
    sent = examples_of_item(kind)
    made = api.create(input=[*sent, USER], max_output_tokens=2)
    listed = api.send("GET", f"responses/{made['id']}/input_items?order=asc").json()["data"]
    own = {"id", "approval_request_id"} if kind.startswith("mcp") else {"id"}
    own |= set() if kind in ITEMS else {"status"}  # those that no model reads are complete
    for item, back in zip(sent, listed, strict=False):
        content = {"content": back["content"]} if isinstance(item.get("content"), str) else {}
        expected = {name: value for name, value in (item | content).items() if name not in own}
        assert {name: back.get(name) for name in expected} == expected
    known = sdk_fields.sections()[f"item {kind}"].keys()
    if kind in ITEMS:
        assert known - set(paths(sent)) - {"action.sources"} == set()
    assert named(f"item {kind}", "refused") == []


@pytest.mark.parametrize("kind", sorted(sdk_fields.by_type(sdk_fields.PARTS)))
def test_every_field_of_a_content_part_is_taken_or_refused_by_its_name(api: Api, kind: str) -> None:
    annotated = [sdk_fields.sample(one) for one in sdk_fields.by_type(sdk_fields.PARTS)[kind]]
    role, parts = PARTS.get(kind, ("assistant", annotated))
    api.create(input=[{"role": role, "content": parts}], max_output_tokens=2)
    refused = named(f"part {kind}", "refused")
    known = sdk_fields.sections()[f"part {kind}"].keys()
    if kind in PARTS:
        assert known - set(paths(parts)) == set(refused)
    for name in refused:
        part = {"type": kind, name: "x"}
        api.refused({"input": [{"role": role, "content": [part]}]}, f"input[0].content[0].{name}")


@pytest.mark.parametrize("kind", sorted(sdk_fields.by_type(sdk_fields.TOOLS).keys() - {"mcp"}))
def test_every_field_of_a_tool_is_repeated_or_refused_by_its_name(api: Api, kind: str) -> None:
    tool = TOOLS.get(kind) or sdk_fields.sample(sdk_fields.by_type(sdk_fields.TOOLS)[kind][0]) | {
        "type": kind
    }
    made = api.create(tools=[tool], max_output_tokens=2)
    assert made["tools"] == ([tool] if kind in TOOLS else [])
    if kind in TOOLS:
        unsent = sdk_fields.sections()[f"tool {kind}"].keys() - set(paths(tool))
        assert unsent <= set(named(f"tool {kind}", "ignored"))
    for name in named(f"tool {kind}", "refused"):
        wrong = (
            {**tool, "tools": [{**tool["tools"][0], name.partition(".")[2]: True}]}
            if "." in name
            else tool | {name: True}
        )
        api.refused({"tools": [wrong]}, f"tools[0].{name.replace('tools.', 'tools[0].')}")


def test_every_field_of_an_mcp_server_has_a_word_about_it(api: Api) -> None:
    """Whose tools need a server; here its declaration is decoded, and refused for what it names."""
    for name in named("tool mcp", "refused"):
        api.refused({"tools": [{"type": "mcp", "server_label": "s", name: "x"}]}, f"tools[0].{name}")


@pytest.mark.parametrize("kind", sorted(sdk_fields.choices() - {"mcp"}))
def test_every_form_of_tool_choice_is_taken_or_refused(api: Api, kind: str) -> None:
    tools = [TOOLS[name] for name in ("function", "custom", "shell", "apply_patch")]
    if verdicts("tool_choice")[kind] == "works":
        assert api.create(tools=tools, tool_choice=CHOICES[kind])["tool_choice"] == CHOICES[kind]
    else:
        api.refused({"tools": tools, "tool_choice": {"type": kind}}, "tool_choice")


def test_every_value_of_include_is_taken_and_any_other_refused_everywhere(
    api: Api, names: dict[str, str]
) -> None:
    known = sorted(verdicts("include"))
    made = api.create(include=known, max_output_tokens=2)
    items = f"conversations/{names['conversation']}/items"
    item = api.send("POST", items, {"items": [USER]}).json()["data"][0]
    places = [
        ("GET", f"responses/{made['id']}", None),
        ("GET", f"responses/{made['id']}/input_items", None),
        ("POST", items, {"items": [USER]}),
        ("GET", items, None),
        ("GET", f"{items}/{item['id']}", None),
    ]
    misspelt = "reasoning.encrypted"
    for method, path, body in places:
        query = "&".join(f"include[]={value}" for value in known)
        assert api.send(method, f"{path}?{query}", body).status_code == 200
        for name in ("include", "include[]"):
            answer = api.send(method, f"{path}?{name}={misspelt}", body)
            assert check_error(answer, 400, "invalid_request_error")["param"] == "include"
    for path in ("responses", "responses/input_tokens", "responses/compact"):
        answer = api.send("POST", path, {"model": MODEL, "input": ASK, "include": [known[0], misspelt]})
        assert check_error(answer, 400, "invalid_request_error")["param"] == "include"


def test_the_events_that_are_sent_are_those_of_the_openapi_document(scripted_server: ServerProcess) -> None:
    document = httpx.get(f"{scripted_server.url}/openapi.json", timeout=60).json()
    sent = document["components"]["schemas"]["StreamEvent"]["discriminator"]["mapping"].keys()
    assert sent & sdk_fields.events() == set(named("events", "works"))
