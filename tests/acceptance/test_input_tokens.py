"""POST /v1/responses/input_tokens says what a response would be told to have used."""

from typing import Any

import httpx
import psycopg
import pytest

from tests.acceptance.error_object import check_error
from tests.fix_server import Connect
from tests.support.server_process import MODEL, ServerProcess

TOOL = {"type": "function", "name": "f", "description": "Gives seven.", "parameters": {"type": "object"}}
REQUESTS: dict[str, dict[str, Any]] = {
    "text": {"input": "My name is Xiomara."},
    "items": {"input": [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi"}]},
    "instructions": {"input": "Hi", "instructions": "Be brief, and never say more than you must."},
    "tools": {"input": "Hi", "tools": [TOOL]},
    "format": {"input": "Hi", "text": {"format": {"type": "json_object"}}},
    "reasoning": {"input": "Hi", "reasoning": {"effort": "low"}},
}


def count(server: ServerProcess, **body: object) -> httpx.Response:
    return httpx.post(f"{server.api}/responses/input_tokens", json=body)


@pytest.mark.parametrize("body", REQUESTS.values(), ids=list(REQUESTS))
def test_count_is_the_usage_that_the_response_would_have(
    demo_server: ServerProcess, connect: Connect, body: dict[str, Any]
) -> None:
    client = connect(demo_server)
    counted = client.responses.input_tokens.count(model=MODEL, **body)
    made = client.responses.create(model=MODEL, max_output_tokens=1, **body)
    assert made.usage is not None
    assert counted.object == "response.input_tokens"
    assert counted.input_tokens == made.usage.input_tokens


def test_count_goes_on_from_a_response_and_needs_neither_model_nor_input(
    scripted_server: ServerProcess, connect: Connect
) -> None:
    first = connect(scripted_server).responses.create(model=MODEL, input="Hello")
    alone = count(scripted_server, previous_response_id=first.id).json()["input_tokens"]
    more = count(scripted_server, previous_response_id=first.id, input="More", model=None).json()
    second = connect(scripted_server).responses.create(
        model=MODEL, input="More", previous_response_id=first.id
    )
    assert second.usage is not None
    assert more["input_tokens"] == second.usage.input_tokens
    assert alone < more["input_tokens"]


def test_more_than_the_model_can_read_is_counted(scripted_server: ServerProcess) -> None:
    told = count(scripted_server, model=MODEL, input="word " * 20000)
    assert told.json()["input_tokens"] > 20000


def test_nothing_of_a_count_is_stored(scripted_server: ServerProcess, scripted_database: str) -> None:
    rows = "select count(*) from items where payload::text like '%uncounted secret%'"
    assert count(scripted_server, model=MODEL, input="uncounted secret").status_code == 200
    with psycopg.connect(scripted_database) as connection:
        assert connection.execute(rows).fetchone() == (0,)


WRONG: list[tuple[dict[str, object], int, str]] = [
    ({"model": "gpt-9"}, 404, "model"),
    ({"input": 7}, 400, "input"),
    ({"input": [{"role": "wizard", "content": ""}]}, 400, "input[0].role"),
    ({"previous_response_id": "resp_x"}, 400, "previous_response_id"),
    ({"tool_choice": "required"}, 400, "tool_choice"),
    ({"tools": [{"type": "function"}]}, 400, "tools[0].name"),
    ({"truncation": "maybe"}, 400, "truncation"),
]


@pytest.mark.parametrize(("body", "status", "param"), WRONG)
def test_what_a_response_would_be_refused_for_is_not_counted(
    scripted_server: ServerProcess, body: dict[str, object], status: int, param: str
) -> None:
    error = check_error(count(scripted_server, **body), status, "invalid_request_error")
    assert error["param"] == param
