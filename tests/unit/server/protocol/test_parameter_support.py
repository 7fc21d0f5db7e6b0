"""Names of parameters at the door: what is refused, by which name, and what is let through."""

import json
from typing import Any, get_args

import msgspec
import pytest
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params

from server.errors import InvalidRequest
from server.protocol.completions.requests import ChatRequest, TextRequest
from server.protocol.decode import check_names
from server.protocol.parameter_support import ELSEWHERE, TABLES, Endpoint
from server.protocol.responses.request import CreateResponse
from tests.support.anchor_parameters import OPENAI, VLLM
from tests.support.api_page import PAGE, page

ENDPOINTS: tuple[Endpoint, ...] = get_args(Endpoint)
STRUCTS: dict[Endpoint, type[msgspec.Struct]] = {
    "responses": CreateResponse,
    "chat": ChatRequest,
    "completions": TextRequest,
}
SDK: dict[Endpoint, tuple[Any, ...]] = {
    "responses": (
        response_create_params.ResponseCreateParamsBase,
        response_create_params.ResponseCreateParamsStreaming,
    ),
    "chat": (
        chat_create_params.CompletionCreateParamsBase,
        chat_create_params.CompletionCreateParamsStreaming,
    ),
    "completions": (
        completion_create_params.CompletionCreateParamsBase,
        completion_create_params.CompletionCreateParamsStreaming,
    ),
}


def refused(endpoint: Endpoint, **given: object) -> InvalidRequest | None:
    raw = msgspec.json.decode(json.dumps(given), type=dict[str, msgspec.Raw])
    try:
        check_names(endpoint, raw)
    except InvalidRequest as failure:
        return failure
    return None


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_every_parameter_of_the_documents_has_a_row(endpoint: Endpoint) -> None:
    sdk = {name for kind in SDK[endpoint] for name in kind.__annotations__}
    assert OPENAI[endpoint] >= sdk, "the installed SDK has parameters that the list lacks"
    assert (OPENAI[endpoint] | VLLM[endpoint]) - TABLES[endpoint].keys() == set()


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_what_works_is_a_field_of_the_request_and_every_field_has_a_row(endpoint: Endpoint) -> None:
    fields = {field.encode_name for field in msgspec.structs.fields(STRUCTS[endpoint])}
    works = {name for name, row in TABLES[endpoint].items() if row.verdict == "works"}
    assert works - fields == set()
    assert fields - TABLES[endpoint].keys() == set()


def test_every_row_that_does_not_work_says_why() -> None:
    rows = [row for table in TABLES.values() for row in table.values() if row.verdict != "works"]
    assert all(row.reason.endswith(".") for row in rows)


def test_the_page_of_parameters_is_as_the_rows_are() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m tests.support.documents"


@pytest.mark.parametrize(
    ("endpoint", "name", "paths"),
    [
        ("responses", "max_tokens", "/v1/chat/completions and /v1/completions"),
        ("responses", "messages", "/v1/chat/completions"),
        ("responses", "response_format", "/v1/chat/completions and /v1/completions"),
        ("responses", "reasoning_effort", "/v1/chat/completions"),
        ("chat", "input", "/v1/responses"),
        ("chat", "max_output_tokens", "/v1/responses"),
        ("chat", "text", "/v1/responses"),
        ("completions", "messages", "/v1/chat/completions"),
        ("completions", "tools", "/v1/responses and /v1/chat/completions"),
    ],
)
def test_a_parameter_of_another_endpoint_is_refused_with_its_address(
    endpoint: Endpoint, name: str, paths: str
) -> None:
    failure = refused(endpoint, **{name: "x"})
    assert failure is not None
    assert failure.param == name
    assert failure.code == "unsupported_parameter"
    assert str(failure).endswith(f"It is a parameter of {paths}.")


@pytest.mark.parametrize(
    "given",
    [
        {"models": ["m"], "provider": {"order": []}, "transforms": [], "route": "fallback"},
        {"thinking": {"type": "enabled"}, "enable_thinking": True, "keep_alive": "5m", "options": {}},
        {"chat_id": "1", "session": "2", "tags": [], "num_ctx": 4096, "plugins": []},
    ],
)
def test_what_gateways_and_other_servers_add_is_ignored(given: dict[str, object]) -> None:
    assert refused("chat", model="m", messages=[], **given) is None


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_null_and_values_that_ask_for_nothing_are_accepted(endpoint: Endpoint) -> None:
    for name, row in {**TABLES[endpoint], **ELSEWHERE[endpoint]}.items():
        for value in (None, *row.neutral):
            assert refused(endpoint, **{name: value}) is None, (name, value)


def test_a_number_that_equals_a_neutral_one_asks_for_nothing() -> None:
    assert refused("responses", use_beam_search=False) is None
    assert refused("responses", use_beam_search=True) is not None
