"""`/openapi.json` is true: what it says is what the server takes and gives."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import httpx
import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from openapi_spec_validator import OpenAPIV31SpecValidator
from schemathesis import APIOperation, Case, GenerationMode
from schemathesis.checks import load_all_checks

from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess, run_command
from tests.support.sse import create, parse

Json = dict[str, Any]
Operation = APIOperation[Any, Any, Any, Any]
pytestmark = pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")
"""Of a failure's long text."""
load_all_checks()
CHECKS: list[Any] = schemathesis.checks.CHECKS.get_by_names(
    [
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_headers_conformance",
        "response_schema_conformance",
    ]
)
LEADS_ELSEWHERE = ("previous_response_id", "conversation", "prompt")
"""Parameters that made-up values of lead nowhere."""
WEATHER: Json = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
ASKED: Json = {"model": MODEL, "input": "Hello"}
SAID = [{"role": "user", "content": "Hello"}]
ENDPOINT: Json = {"name": "ends", "url": "http://127.0.0.1:9/", "event_types": ["response.completed"]}
"""Nobody listens there."""
SENSIBLE: dict[str, Json] = {
    "/v1/responses": ASKED,
    "/v1/responses/input_tokens": ASKED,
    "/v1/responses/compact": ASKED,
    "/v1/chat/completions": {"model": MODEL, "messages": SAID},
    "/v1/chat/completions/{completion_id}": {"metadata": {"a": "b"}},
    "/v1/completions": {"model": MODEL, "prompt": "Hello"},
    "/tokenize": {"model": MODEL, "prompt": "Hello"},
    "/detokenize": {"model": MODEL, "tokens": [1]},
    "/v1/conversations/{conversation_id}": {"metadata": {"a": "b"}},
    "/v1/conversations/{conversation_id}/items": {"items": SAID},
    "/admin/v1/tenants": {"id": "fresh"},
    "/admin/v1/tenants/{tenant}": {"contact": "ops"},
    "/admin/v1/keys": {"tenant": "acme"},
    "/admin/v1/keys/{key_id}": {"name": "of CI"},
    "/admin/v1/keys/{key_id}/rotate": {"overlap_seconds": 3600},
    "/admin/v1/keys/{key_id}/revoke": {"end": True},
    "/v1/webhook_endpoints": ENDPOINT,
    "/v1/webhook_endpoints/{webhook_endpoint_id}": {"name": "other"},
    "/v1/webhook_endpoints/{webhook_endpoint_id}/test": {"event_type": "response.completed"},
    "/admin/v1/webhook_endpoints": {**ENDPOINT, "tenant": "acme"},
    "/admin/v1/approvals/{approval_id}": {"approve": False},
    "/admin/v1/webhook_endpoints/{webhook_endpoint_id}": {"name": "other"},
    "/admin/v1/webhook_endpoints/{webhook_endpoint_id}/test": {"event_type": "response.completed"},
    "/admin/v1/prices": {"model": MODEL, "input": "1.5", "output": "2"},
}
"""Bodies that get as far as what they are about."""
NEED_A_RECEIVER = ("{webhook_endpoint_id}/test", "{delivery_id}/redeliver", "{approval_id}")
"""Ends of addresses that answer 200 only where somebody listens; they are in the tests of webhooks."""


def make_key(database_url: str, *flags: str) -> str:
    scopes = ("--scopes", "read,write,metrics,admin")
    made = run_command("keys", "create", *scopes, *flags, database_url=database_url)
    return made.stdout.strip()


@dataclass
class Guarded:
    """A server that needs a key, with something stored in it."""

    server: ServerProcess
    key: str
    document: Json
    ids: dict[str, str]
    """By the names that the addresses have for them."""
    revocable: str = ""
    """A key that is good for nothing but to be revoked."""

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}

    def post(self, path: str, body: object) -> str:
        made = httpx.post(f"{self.server.api}/{path}", json=body, headers=self.headers)
        found: str = made.json()["id"]
        return found


def schema(document: Json, name: str) -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for(
        {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
    )


@pytest.fixture(scope="module")
def guarded(module_database: str) -> Iterator[Guarded]:
    key, other, third = (make_key(module_database, "--tenant", "acme") for _ in range(3))
    assert run_command("tenants", "create", "acme", database_url=module_database).returncode == 0
    assert run_command("tenants", "create", "spare", database_url=module_database).returncode == 0
    settings = {"engine": "scripted", "scripted_tokens": 4, "webhook_hosts": "http://127.0.0.1:9"}
    server = ServerProcess(module_database, settings=settings)
    try:
        server.start()
        found = Guarded(server, key, httpx.get(f"{server.url}/openapi.json").json(), {"model": MODEL})
        found.revocable = third.split("_")[1]
        hello = {"model": MODEL, "input": "Hello", "background": True}
        found.ids["response_id"] = response = found.post("responses", hello)
        address = f"{server.api}/responses/{response}"
        eventually(lambda: httpx.get(address, headers=found.headers).json()["status"] == "completed")
        chat = {"model": MODEL, "messages": SAID, "store": True}
        found.ids["completion_id"] = found.post("chat/completions", chat)
        items = [{"role": "user", "content": "Hello"}]
        conversation = found.post("conversations", {"items": items})
        found.ids |= {
            "tenant": "spare",
            "key_id": other.split("_")[1],
            "conversation_id": conversation,
            "item_id": conversation.replace("conv", "msg") + "c0",
            "webhook_endpoint_id": found.post("webhook_endpoints", ENDPOINT),
            "delivery_id": "wh_" + "0" * 32,
            "approval_id": "mcpr_" + "0" * 32,
        }
        yield found
    finally:
        server.stop()


def test_document_is_openapi_3_1_and_open_to_everyone(guarded: Guarded) -> None:
    answer = httpx.get(f"{guarded.server.url}/openapi.json")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["openapi"] == "3.1.0"
    assert [str(error) for error in OpenAPIV31SpecValidator(answer.json()).iter_errors()] == []


def test_addresses_need_a_key_exactly_where_the_document_says_so(guarded: Guarded) -> None:
    for path, operations in guarded.document["paths"].items():
        for method, operation in operations.items():
            address = guarded.server.url + path.format_map(guarded.ids)
            answer = httpx.request(method, address)
            assert (answer.status_code == 401) == ("security" in operation), operation["operationId"]
            assert answer.status_code in (200, 401)


def test_no_schema_is_left_without_use_and_none_is_missing(guarded: Guarded) -> None:
    used = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(guarded.document)))
    assert used == set(guarded.document["components"]["schemas"])


@st.composite
def few_of(draw: st.DrawFn, given: Mapping[str, Any]) -> Json:
    """What can be wrong with one thing is not hidden by what is wrong with another."""
    names = draw(st.sets(st.sampled_from(sorted(given)), max_size=3)) if given else set()
    return {name: given[name] for name in names}


@st.composite
def plausible(draw: st.DrawFn, guarded: Guarded, strategy: st.SearchStrategy[Case[Any]]) -> Case[Any]:
    """A case that mostly gets as far as what it is about."""
    case = draw(strategy)
    for name in case.path_parameters:
        if draw(st.integers(0, 3)):
            case.path_parameters[name] = guarded.ids[name]
            if case.path.endswith("/revoke"):
                case.path_parameters[name] = guarded.revocable
    case.query = draw(few_of(case.query))
    if draw(st.integers(0, 3)):
        case.headers.pop("Idempotency-Key", None)  # an earlier request may have had it
    if case.path.endswith("/deliveries") and draw(st.integers(0, 3)):
        case.query.pop("after", None)  # no delivery is there to go on from
    if isinstance(case.body, dict) and draw(st.integers(0, 4)):
        sensible = SENSIBLE.get(case.path, {})
        case.body = {**sensible, **draw(few_of(case.body))}
        if "model" in sensible:
            case.body["model"] = MODEL
        for name in LEADS_ELSEWHERE:
            case.body.pop(name, None)
            if name in sensible:
                case.body[name] = sensible[name]
    return case


def explore(guarded: Guarded, examples: int, mode: GenerationMode) -> dict[str, set[int]]:
    """Asks for what the document says that may be asked for, or not; what each operation answered with."""
    described = schemathesis.openapi.from_dict(guarded.document)
    described.config.generation.update(allow_x00=False)
    operations: list[APIOperation[Any, Any, Any, Any]] = [
        cast("Any", found).ok() for found in described.get_all_operations()
    ]
    operations.sort(key=lambda one: (one.method == "delete", -len(one.path)))
    if mode == GenerationMode.NEGATIVE:
        operations = [operation for operation in operations if operation.body or operation.query]
    return {operation.label: ask(guarded, operation, examples, mode) for operation in operations}


def ask(guarded: Guarded, operation: Operation, examples: int, mode: GenerationMode) -> set[int]:
    statuses: set[int] = set()
    if operation.label.startswith("DELETE") and operation.path.endswith("{webhook_endpoint_id}"):
        made = httpx.get(f"{guarded.server.api}/webhook_endpoints", headers=guarded.headers).json()["data"]
        found = made[0]["id"] if made else guarded.post("webhook_endpoints", ENDPOINT)
        guarded.ids["webhook_endpoint_id"] = found  # an earlier one may have been deleted
    if operation.label == "POST /admin/v1/tenants/{tenant}":  # whose erasure has been asked for, too
        url, spare = f"{guarded.server.url}/admin/v1/tenants", {"id": "spare"}
        httpx.post(url, json=spare, headers=guarded.headers)
        examples *= 4  # of which few are of this tenant and without control characters

    if operation.label.startswith("POST") and operation.path.endswith("/webhook_endpoints"):
        examples *= 2  # of which few have a URL that may be called

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(case=plausible(guarded, operation.as_strategy(generation_mode=mode)))
    def once(case: Case[Any]) -> None:
        answer = case.call(base_url=guarded.server.url, headers=guarded.headers, timeout=30)
        statuses.add(answer.status_code)
        case.validate_response(answer, checks=CHECKS)

    once()
    return statuses


@pytest.mark.usefixtures("made_up_items")
def test_server_answers_as_the_document_says(guarded: Guarded) -> None:
    answered = explore(guarded, 6, GenerationMode.POSITIVE)
    failed = {label for label, statuses in answered.items() if 200 not in statuses}
    assert {label for label in failed if not label.endswith(NEED_A_RECEIVER)} == set()


@pytest.mark.usefixtures("made_up_items")
def test_server_answers_as_the_document_says_what_it_does_not_allow(guarded: Guarded) -> None:
    answered = explore(guarded, 3, GenerationMode.NEGATIVE)
    refused = [label for label, statuses in answered.items() if statuses & {400, 404}]
    assert len(refused) > len(answered) / 2


@pytest.mark.faults
@pytest.mark.usefixtures("made_up_items")
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_server_answers_as_the_document_says_for_long(guarded: Guarded, mode: GenerationMode) -> None:
    explore(guarded, 60, mode)


STREAMS: dict[str, Json] = {
    "text": {"input": "Count to 3", "include": ["message.output_text.logprobs"], "top_logprobs": 2},
    "background": {"input": "Count to 3", "background": True},
    "incomplete": {"input": "Count to 100", "max_output_tokens": 5},
    "reasoning": {
        "input": "Count to 3",
        "reasoning": {"effort": "low"},
        "include": ["reasoning.encrypted_content"],
    },
    "json": {
        "input": "Say it in JSON.",
        "text": {"format": {"type": "json_object"}, "verbosity": "low"},
        "enable_response_messages": True,
    },
    "function": {"input": "What is the weather in Paris?", "tools": [WEATHER], "tool_choice": "required"},
    "custom": {
        "input": "What is the weather in Paris?",
        "tools": [{"type": "custom", "name": "note", "description": "Takes a note."}],
        "tool_choice": {"type": "custom", "name": "note"},
        "max_output_tokens": 40,
    },
}


@pytest.mark.parametrize("name", STREAMS)
def test_streams_of_every_family_fit_the_document(demo_server: ServerProcess, name: str) -> None:
    document = httpx.get(f"{demo_server.url}/openapi.json").json()
    event = schema(document, "StreamEvent")
    with create(demo_server.url, {"model": MODEL, **STREAMS[name]}) as stream:
        told = [frame.json for frame in stream]
    for one in told:
        event.validate(one)
    stored = httpx.get(f"{demo_server.api}/responses/{told[0]['response']['id']}").json()
    schema(document, "Response").validate(stored)
    body = {"model": MODEL, **STREAMS[name]}
    schema(document, "CreateResponse").validate(body)
    del told[-1]["response"]["output"]
    assert not event.is_valid(told[-1])


def test_stream_under_the_specifications_names_fits_the_document(demo_server: ServerProcess) -> None:
    document = httpx.get(f"{demo_server.url}/openapi.json").json()
    body = {"model": MODEL, **STREAMS["reasoning"], "stream": True}
    headers = {"Holdfast-Event-Names": "open-responses"}
    answer = httpx.post(f"{demo_server.api}/responses", json=body, headers=headers, timeout=60)
    told = [frame.json for frame in parse(answer.content)]
    assert {"response.reasoning.delta", "response.reasoning.done"} <= {one["type"] for one in told}
    for one in told:
        schema(document, "StreamEvent").validate(one)


def test_chunks_of_a_chat_fit_the_document(demo_server: ServerProcess) -> None:
    document = httpx.get(f"{demo_server.url}/openapi.json").json()
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    tools = [{"type": "function", "function": {key: WEATHER[key] for key in ("name", "parameters")}}]
    body = {"model": MODEL, "messages": messages, "tools": tools, "tool_choice": "required"}
    schema(document, "ChatRequest").validate(body)
    whole = httpx.post(f"{demo_server.api}/chat/completions", json=body, timeout=60)
    schema(document, "ChatCompletion").validate(whole.json())
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}, "logprobs": True}
    streamed = httpx.post(f"{demo_server.api}/chat/completions", json=asked, timeout=60)
    chunks = [json.loads(line[6:]) for line in streamed.text.split("\n") if line.startswith("data: {")]
    assert any(choice["delta"].get("tool_calls") for chunk in chunks for choice in chunk["choices"])
    for chunk in chunks:
        schema(document, "Chunk").validate(chunk)
