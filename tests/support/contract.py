"""Rows of the contract with OpenAI's clients: what is sent, and what must come of it.

Marks: M and S work, or are told again as they came; A is accepted and changes nothing; R is refused with a
400 that names the parameter.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_type_hints

import httpx

from server.http.handlers.responses import IMAGE_URLS
from tests.acceptance.error_object import check_error
from tests.support.server_process import MODEL, ServerProcess

Body = dict[str, Any]
Answer = dict[str, Any]
ASK = "What is this?"
NOTHING: Body = {"type": "object", "properties": {}, "additionalProperties": False}
FUNCTION: Body = {"type": "function", "name": "look", "parameters": NOTHING}
USER: Body = {"role": "user", "content": ASK}


class Api:
    """The server's, asked in JSON."""

    def __init__(self, server: ServerProcess) -> None:
        self._address = server.api
        self._client = httpx.Client(timeout=60)

    def send(self, method: str, path: str, body: object = None) -> httpx.Response:
        return self._client.request(method, f"{self._address}/{path}", json=body)

    def create(self, **body: object) -> Answer:
        answer = self.send("POST", "responses", {"model": MODEL, "input": ASK, **body})
        assert answer.status_code == 200, answer.text
        told: Answer = answer.json()
        return told

    def prompt(self, **body: object) -> str:
        """What the model is given."""
        told = self.create(enable_response_messages=True, **body)
        prompt: str = told["input_messages"][0]["message"]
        return prompt

    def refused(self, body: Body, param: str) -> None:
        answer = self.send("POST", "responses", {"model": MODEL, "input": ASK, **body})
        assert check_error(answer, 400, "invalid_request_error")["param"] == param

    def close(self) -> None:
        self._client.close()


Check = Callable[[Api], None]


@dataclass(frozen=True)
class Row:
    name: str
    """Of the parameter, or the type of the item, tool or choice."""
    mark: Literal["M", "S", "A", "R"]
    check: Check

    def __str__(self) -> str:
        return f"{self.mark}-{self.name}"


def told(expected: object = None, at: str = "", **sent: Any) -> Check:
    """The response repeats the first of what was sent, or says what is expected in its place."""
    name, value = next(iter(sent.items()))

    def check(api: Api) -> None:
        found = api.create(**sent)[name]
        for key in at.split(".") if at else ():
            found = found[key]
        assert found == (value if expected is None else expected)

    return check


def in_prompt(*texts: str, **sent: Any) -> Check:
    """The model reads these."""

    def check(api: Api) -> None:
        prompt = api.prompt(**sent)
        assert [text for text in texts if text not in prompt] == []

    return check


def changes_nothing(**sent: Any) -> Check:
    """The response is as it would have been, but for what is new in each."""
    own = {"id", "created_at", "completed_at", "output", "usage"}

    def check(api: Api) -> None:
        plain, with_it = (api.create(seed=1, **more) for more in ({}, sent))
        assert {k: v for k, v in with_it.items() if k not in own} == {
            k: v for k, v in plain.items() if k not in own
        }

    return check


def refused(param: str, **sent: Any) -> Check:
    return lambda api: api.refused(sent, param)


def all_of(*checks: Check) -> Check:
    def check(api: Api) -> None:
        for one in checks:
            one(api)

    return check


def kept(*items: Body, **sent: Any) -> Check:
    """Items are stored as they came, before the question."""

    def check(api: Api) -> None:
        made = api.create(input=[*items, USER], **sent)
        query = f"order=asc&include={IMAGE_URLS}"
        listed = api.send("GET", f"responses/{made['id']}/input_items?{query}").json()["data"]
        assert [item["type"] for item in listed] == [*(item["type"] for item in items), "message"]
        for item, back in zip(items, listed, strict=False):
            assert {k: v for k, v in item.items() if k != "id"}.items() <= back.items()

    return check


def types_in(union: object) -> set[str]:
    """The values of `type` that the members of a union may have."""
    if isinstance(union, type):
        hint = get_type_hints(union)["type"]
        return {value for value in _literals(hint) if isinstance(value, str)}
    return {kind for member in get_args(union) for kind in types_in(member)}


def _literals(hint: object) -> set[Any]:
    inner = get_args(hint)
    return {value for one in inner for value in _literals(one)} if inner else {hint}
