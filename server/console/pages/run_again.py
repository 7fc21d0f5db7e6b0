"""A stored response run again: with the same request and seed, or with what a form has changed of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote_plus

import msgspec

from server.administration.repeated_request import StoredRequest, stored_request
from server.console.console_request import ConsoleRequest, pages
from server.console.pages.response import find_facts
from server.delivery.image_urls import with_image_urls
from server.errors import ApiError, InvalidRequest
from server.http.asgi.answers import Answer
from server.http.json_responses import to_api_error
from server.protocol import ids
from server.store.administration.tenants import caller_for
from server.store.console import response_detail
from server.store.database import Connection

MAX_EDITED_BYTES: Final = 200_000
"""Bytes of a request that the form sends whole; a longer one is shown without its input."""


def edited_text(parameters: Mapping[str, Any], items: Sequence[str]) -> tuple[str, bool]:
    """The request as JSON for a form, and whether its input is in it."""
    whole = {**parameters, "input": [msgspec.json.decode(item) for item in items]}
    if sum(map(len, items)) <= MAX_EDITED_BYTES:
        text = msgspec.json.format(msgspec.json.encode(whole)).decode()
        if len(quote_plus(text)) <= MAX_EDITED_BYTES:
            return text, True
    return msgspec.json.format(msgspec.json.encode(parameters)).decode(), False


def read_edited(text: str) -> dict[str, Any]:
    """Decode the request of the form. Raises InvalidRequest unless it is a JSON object."""
    try:
        edited = msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"The request is not JSON: {error}", param="request") from None
    if not isinstance(edited, dict):
        raise InvalidRequest("The request must be a JSON object.", param="request")
    return edited


def request_body(parameters: Mapping[str, Any], items: Sequence[str]) -> bytes:
    """The body of POST /v1/responses for the background; the stored items are the input where it has none."""
    fields = {"input": [msgspec.Raw(item.encode()) for item in items]} if "input" not in parameters else {}
    return msgspec.json.encode({**fields, **parameters, "background": True, "store": True, "stream": False})


@dataclass(frozen=True, slots=True)
class _Source:
    """A stored response whose request is sent again."""

    facts: Mapping[str, Any]
    request: StoredRequest
    items: list[str]
    """The JSON of the input items, with their pictures."""


@pages("GET /responses/{response_id}/run", needs="admin")
def show(console: ConsoleRequest) -> Answer:
    source = _read(console)
    text, _ = edited_text(source.request.parameters, source.items)
    return _page(console, source, text, "")


@pages("POST /responses/{response_id}/run")
def run(console: ConsoleRequest) -> Answer:
    """The audit trail gets its entry after the response has been accepted, in a transaction of its own."""
    source, edited = _read(console), console.form.get("request", "")
    tenant = source.facts["tenant"]
    caller = console.database.read(lambda connection: caller_for(connection, console.caller, tenant))
    try:
        if not edited and source.request.obstacle:
            raise InvalidRequest(source.request.obstacle)
        parameters = read_edited(edited) if edited else source.request.parameters
        accepted = console.services.create(caller, request_body(parameters, source.items))
    except ApiError as error:
        refusal = to_api_error(error)
        text = edited or edited_text(source.request.parameters, source.items)[0]
        return _page(console, source, text, str(refusal), refusal.status)
    name, details = ids.response_id(accepted), {"of": source.facts["response"], "changed": bool(edited)}
    with console.database.begin() as connection:
        console.actor.record(connection, "response.run_again", tenant, name, details)
    return console.redirect(f"/console/responses/{name}", compare=source.facts["response"])


def _read(console: ConsoleRequest) -> _Source:
    """Raises NotFound, and InvalidRequest for an input that is longer than a request may be."""
    facts = find_facts(console)
    tenant, response = facts["tenant"], facts["id"]
    most = console.services.config.max_body_bytes

    def read(connection: Connection) -> tuple[str, str | None, list[str] | None]:
        echo, asked = response_detail.read_request(connection, tenant, response)
        place = (facts["conversation_id"], facts["created_at"])
        items = response_detail.input_items(connection, tenant, response, *place)
        whole = items and with_image_urls(connection, tenant, items, max_bytes=most)
        return echo, asked, whole if whole is None or len(whole) == len(items or ()) else None

    echo, asked, items = console.database.read(read)
    if items is None:
        raise InvalidRequest("The input of this response is longer than a request may be.")
    request = stored_request(echo, asked, kind=facts["kind"], seed=facts["seed"])
    return _Source(facts, request, items)


def _page(console: ConsoleRequest, source: _Source, text: str, message: str, status: int = 200) -> Answer:
    values = {"facts": source.facts, "request": source.request, "text": text, "message": message}
    return console.page("run_again.html", status, has_input='"input":' in text, **values)
