"""Conversations as tests over plain HTTP make, continue and read them."""

from typing import Any

import httpx

from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess

UNKNOWN = "conv_" + "0" * 32


def post(server: ServerProcess, path: str, body: object) -> httpx.Response:
    return httpx.post(f"{server.api}/{path}", json=body, timeout=60)


def make(server: ServerProcess, *texts: str) -> str:
    """A new conversation of a user's messages; its id."""
    items = [{"role": "user", "content": text} for text in texts]
    identifier: str = post(server, "conversations", {"items": items}).json()["id"]
    return identifier


def respond(server: ServerProcess, conversation: str, text: str = "Hello", **more: object) -> httpx.Response:
    return post(server, "responses", {"model": MODEL, "input": text, "conversation": conversation, **more})


def get_a_turn(server: ServerProcess, conversation: str, text: str, **more: object) -> httpx.Response:
    """The answer to a request that is sent until no other one is in its way."""

    def ask() -> httpx.Response | None:
        answer = respond(server, conversation, text, **more)
        return answer if answer.status_code == 200 else None

    answer = eventually(ask, within=60)
    assert answer is not None
    return answer


def items_of(server: ServerProcess, conversation: str) -> list[dict[str, Any]]:
    """All of its items, oldest first."""
    address = f"{server.api}/conversations/{conversation}/items?order=asc&limit=100"
    listed = httpx.get(address, timeout=60).json()
    assert listed["has_more"] is False
    items: list[dict[str, Any]] = listed["data"]
    return items


def said_in(items: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(item["role"], item["content"][0]["text"]) for item in items]


def ended(server: ServerProcess, response: str) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        found: dict[str, Any] = httpx.get(f"{server.api}/responses/{response}", timeout=60).json()
        return found if found["status"] not in ("queued", "in_progress") else None

    found = eventually(look, within=60)
    assert found is not None
    return found
