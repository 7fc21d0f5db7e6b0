"""Two responses side by side: input, parameters, outputs as a diff, times and usage."""

from dataclasses import dataclass
from typing import Any

import msgspec

from server.console.console_request import ConsoleRequest
from server.console.contents.comparison import compare_parameters, compare_texts, text_of
from server.console.contents.item_view import item_view
from server.errors import InvalidRequest, NotFound
from server.http.asgi.answers import Answer
from server.protocol import ids
from server.store.console import response_detail
from server.store.console.response_detail import Relative, ResponseDetail
from server.store.database import Connection

_MAX_OFFERED = 30


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two responses, as far as they are chosen."""

    a: ResponseDetail | None
    b: ResponseDetail | None
    offered: list[Relative]
    """Responses to compare with: of the same chain, conversation and branches."""


def show(console: ConsoleRequest) -> Answer:
    """GET /console/compare; `a` and `b` are the responses"""
    pair = console.services.database.read(lambda connection: _read(connection, console))
    a, b = pair.a, pair.b
    if a is None or b is None:
        first = None if a is None else a.facts
        return console.page("compare.html", a=first, b=None, offered=pair.offered)
    return console.page(
        "compare.html",
        a=a.facts,
        b=b.facts,
        offered=pair.offered,
        parameters=compare_parameters(_parameters(a), _parameters(b)),
        input_diff=_diff(a.inputs, b.inputs) if console.is_admin else None,
        output_diff=_diff(a.outputs, b.outputs) if console.is_admin else None,
    )


def _diff(a: list[response_detail.StoredItem], b: list[response_detail.StoredItem]) -> Any:
    return compare_texts(text_of(map(item_view, a)), text_of(map(item_view, b)))


def _parameters(detail: ResponseDetail) -> dict[str, Any]:
    """What the response repeats of its request; nothing without contents."""
    found: dict[str, Any] = msgspec.json.decode(detail.request) if detail.request else {}
    return found


def _read(connection: Connection, console: ConsoleRequest) -> _Pair:
    a, b = _find(connection, console, "a"), _find(connection, console, "b")
    return _Pair(a, b, [] if a is None else _offered(connection, a))


def _find(connection: Connection, console: ConsoleRequest, name: str) -> ResponseDetail | None:
    """The response that a parameter of the address names; None without the parameter."""
    value = console.argument(name)
    if not value:
        return None
    response = ids.parse_response_id(value)
    if response is None:
        raise InvalidRequest(f"{name} must be the id of a response, not '{value[:100]}'.", param=name)
    found = response_detail.read_detail(connection, response, contents=console.is_admin)
    if found is None:
        raise NotFound(f"There is no response {value[:100]}.", param=name)
    return found


def _offered(connection: Connection, a: ResponseDetail) -> list[Relative]:
    """Siblings first: they answer the same history."""
    siblings: list[Relative] = []
    if len(a.chain) > 1:
        siblings = response_detail.read_branches(connection, a.facts["tenant"], a.chain[-2].id)
    found = {one.id: one for one in [*siblings, *reversed(a.chain), *a.branches, *a.conversation]}
    return [one for one in found.values() if one.id != a.facts["id"] and not one.deleted][:_MAX_OFFERED]
