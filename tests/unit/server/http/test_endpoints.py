"""Every address that the SDK's resources ask at is answered here, or is known not to be."""

import inspect
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from openai import OpenAI, OpenAIError
from openai._resource import SyncAPIResource
from starlette.routing import Match, Route

from server.http.routes import ROUTES

NOT_HERE = {("DELETE", "/v1/models/x")}
"""A model is deleted in its folder."""
NOT_ASKING = frozenset({"parse", "stream", "connect", "create_and_poll"})
"""Methods that go through others, or speak by WebSocket."""
ROUTED = [
    Route(path, lambda _request: None, methods=[method])
    for method, path in (one.route.split() for one in ROUTES)
]
Asked = tuple[str, str]


def recording(asked: list[Asked]) -> OpenAI:
    """A client whose requests are noted, and refused."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append((request.method, request.url.path))
        return httpx2.Response(400, json={})

    http = httpx2.Client(transport=httpx2.MockTransport(answer))
    return OpenAI(api_key="x", base_url="http://here/v1", max_retries=0, http_client=http)


ASKED: list[Asked] = []
CLIENT = recording(ASKED)


def resources() -> Iterator[SyncAPIResource]:
    yield from (CLIENT.responses, CLIENT.responses.input_items, CLIENT.responses.input_tokens)
    yield from (CLIENT.conversations, CLIENT.conversations.items, CLIENT.models, CLIENT.completions)
    yield from (CLIENT.chat.completions, CLIENT.chat.completions.messages)


def methods() -> Iterator[Any]:
    for resource in resources():
        for name, method in inspect.getmembers(resource, inspect.ismethod):
            if not name.startswith("_") and name not in NOT_ASKING:
                yield pytest.param(method, id=f"{type(resource).__name__}.{name}")


def asked_by(method: Any) -> Asked:
    """What a method of a resource asks, called with something for all that it must be given."""
    ASKED.clear()
    parameters = inspect.signature(method).parameters.values()
    with pytest.raises(OpenAIError):
        list(method(**{one.name: "x" for one in parameters if one.default is inspect.Parameter.empty}))
    (once,) = ASKED
    return once


def is_answered(asked: Asked) -> bool:
    scope = {"type": "http", "method": asked[0], "path": asked[1], "root_path": ""}
    return any(route.matches(scope)[0] is Match.FULL for route in ROUTED)


@pytest.mark.parametrize("method", list(methods()))
def test_what_a_method_of_the_sdk_asks_for_is_answered(method: Any) -> None:
    asked = asked_by(method)
    assert is_answered(asked) == (asked not in NOT_HERE)


def test_parameters_of_an_address_are_those_of_the_sdk() -> None:
    """Those that go into the query."""
    said = {
        (route.method, route.path): {one.name.removesuffix("[]") for one in route.parameters}
        for route in ROUTES
    }
    for method, path, asked in (
        (CLIENT.responses.retrieve, "/v1/responses/{response_id}", "GET"),
        (CLIENT.responses.input_items.list, "/v1/responses/{response_id}/input_items", "GET"),
        (CLIENT.conversations.items.list, "/v1/conversations/{conversation_id}/items", "GET"),
        (CLIENT.chat.completions.list, "/v1/chat/completions", "GET"),
        (CLIENT.chat.completions.messages.list, "/v1/chat/completions/{completion_id}/messages", "GET"),
    ):
        theirs = {
            name
            for name in inspect.signature(method).parameters
            if not name.startswith("extra_") and name != "timeout" and f"{{{name}}}" not in path
        }
        assert theirs <= said[asked, path]
