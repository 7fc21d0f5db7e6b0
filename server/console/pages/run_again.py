"""A stored response run again: with the same request and seed, or with what a form has changed of it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from server.caller import Caller
from server.console.console_request import ConsoleRequest
from server.console.contents.stored_request import (
    StoredRequest,
    edited_text,
    read_edited,
    request_body,
    stored_request,
)
from server.console.pages.response import find_facts
from server.delivery.image_urls import with_image_urls
from server.errors import ApiError, InvalidRequest
from server.http.asgi.answers import Answer
from server.http.json_responses import to_api_error
from server.protocol import ids, input_images
from server.protocol.decode import decode
from server.protocol.error_object import DecodeFailure
from server.protocol.responses.request import CreateResponse
from server.store.administration import tenants
from server.store.console import response_detail, stored_input
from server.store.database import Connection


@dataclass(frozen=True, slots=True)
class _Source:
    """What is run again."""

    facts: Mapping[str, Any]
    request: StoredRequest
    items: list[str]
    """The JSON of the input items, with their pictures."""


def show(console: ConsoleRequest) -> Answer:
    """GET /console/responses/{response_id}/run: the request, to be changed"""
    source = _read(console)
    text, _ = edited_text(source.request.parameters, source.items)
    return _page(console, source, text, "")


def run(console: ConsoleRequest) -> Answer:
    """POST /console/responses/{response_id}/run: the page of the new response follows it

    The audit trail gets its entry after the response has been accepted, in a transaction of its own.
    """
    source, edited = _read(console), console.form.get("request", "")
    tenant = source.facts["tenant"]
    try:
        if not edited and source.request.obstacle:
            raise InvalidRequest(source.request.obstacle)
        parameters = read_edited(edited) if edited else source.request.parameters
        accepted = _admit(console, tenant, request_body(parameters, source.items))
    except (ApiError, DecodeFailure) as error:
        refusal = to_api_error(error)
        text = edited or edited_text(source.request.parameters, source.items)[0]
        return _page(console, source, text, str(refusal), refusal.status)
    name, details = ids.response_id(accepted), {"of": source.facts["response"], "changed": bool(edited)}
    with console.services.database.begin() as connection:
        console.actor.record(connection, "response.run_again", tenant, name, details)
    return console.redirect(f"/console/responses/{name}", compare=source.facts["response"])


def _admit(console: ConsoleRequest, tenant: str, body: bytes) -> Any:
    """The id of the new response, which counts as the tenant's and as of the caller's key."""
    services = console.services
    caller = services.database.read(lambda connection: _caller_for(connection, console.caller, tenant))
    input_images.SOURCE.set(services.model.image_source(tenant))
    wanted = decode(body, CreateResponse, endpoint="responses")
    (accepted,) = services.admission.admit(caller, [wanted])
    return accepted.id


def _caller_for(connection: Connection, caller: Caller, tenant: str) -> Caller:
    if caller.tenant == tenant:
        return caller
    return replace(caller, tenant=tenant, settings=tenants.settings_of(connection, tenant))


def _read(console: ConsoleRequest) -> _Source:
    """Raises NotFound, and InvalidRequest for an input that is longer than a request may be."""
    facts = find_facts(console)
    tenant, response = facts["tenant"], facts["id"]
    most = console.services.config.max_body_bytes

    def read(connection: Connection) -> tuple[str, str | None, list[str] | None]:
        echo, asked = response_detail.read_request(connection, tenant, response)
        items = stored_input.input_items(
            connection, tenant, response, facts["conversation_id"], facts["created_at"]
        )
        whole = items and with_image_urls(connection, tenant, items, max_bytes=most)
        return echo, asked, whole if whole is None or len(whole) == len(items or ()) else None

    echo, asked, items = console.services.database.read(read)
    if items is None:
        raise InvalidRequest("The input of this response is longer than a request may be.")
    request = stored_request(echo, asked, kind=facts["kind"], seed=facts["seed"])
    return _Source(facts, request, items)


def _page(console: ConsoleRequest, source: _Source, text: str, message: str, status: int = 200) -> Answer:
    return console.page(
        "run_again.html",
        status,
        facts=source.facts,
        request=source.request,
        has_input='"input":' in text,
        text=text,
        message=message,
    )
