"""`json_object` with a schema, as clients of llama.cpp send it: the schema holds like a `json_schema`."""

import json
from typing import Any

import httpx
import pytest

from tests.acceptance.error_object import check_error
from tests.support.server_process import MODEL, ServerProcess

SCHEMA: dict[str, Any] = {
    "properties": {"name": {"const": "Ada"}, "age": {"enum": [36]}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
ADA = {"name": "Ada", "age": 36}


def ask(server: ServerProcess, path: str, form: dict[str, Any]) -> httpx.Response:
    bodies: dict[str, dict[str, Any]] = {
        "responses": {"input": "Hello", "text": {"format": form}},
        "chat/completions": {"messages": [{"role": "user", "content": "Hello"}], "response_format": form},
        "completions": {"prompt": "Hello", "max_tokens": 60, "response_format": form},
    }
    body = {"model": MODEL, "temperature": 0, **bodies[path]}
    return httpx.post(f"{server.api}/{path}", json=body, timeout=60)


def text_of(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    told = answer.json()
    if "output" in told:
        (message,) = [item for item in told["output"] if item["type"] == "message"]
        return str(message["content"][0]["text"])
    choice = told["choices"][0]
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


@pytest.mark.parametrize("path", ["responses", "chat/completions", "completions"])
def test_answer_has_the_schema_of_a_json_object(demo_server: ServerProcess, path: str) -> None:
    answer = ask(demo_server, path, {"type": "json_object", "schema": SCHEMA})
    assert json.loads(text_of(answer)) == ADA


@pytest.mark.parametrize("schema", [None, {}])
@pytest.mark.parametrize("path", ["responses", "chat/completions"])
def test_json_object_without_a_schema_stays_one(
    demo_server: ServerProcess, path: str, schema: dict[str, Any] | None
) -> None:
    answer = ask(demo_server, path, {"type": "json_object", "schema": schema})
    assert answer.status_code == 200
    if path == "responses":
        assert answer.json()["text"]["format"]["type"] == "json_object"


def test_response_tells_the_format_that_holds(demo_server: ServerProcess) -> None:
    told = ask(demo_server, "responses", {"type": "json_object", "schema": SCHEMA}).json()["text"]["format"]
    assert (told["type"], told["name"]) == ("json_schema", "answer")
    assert told["schema"] == {"type": "object", **SCHEMA}


@pytest.mark.parametrize("path", ["responses", "chat/completions", "completions"])
def test_schema_that_cannot_hold_is_refused(demo_server: ServerProcess, path: str) -> None:
    answer = ask(demo_server, path, {"type": "json_object", "schema": {"type": "no such type"}})
    error = check_error(answer, 400, "invalid_request_error")
    assert error["param"].startswith(("text.format", "response_format"))
