"""A stored response run again: with the same request and seed, or with what a form has changed of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import quote_plus
from uuid import UUID

import msgspec

from server.caller import Caller
from server.console.console_request import ConsoleRequest, pages
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
from server.store.console import response_detail
from server.store.database import Connection

MAX_EDITED_BYTES: Final = 200_000
"""Bytes of a request that the form sends whole; a longer one is shown without its input."""
_OF_ITS_RUN: Final = (
    *("background", "store", "stream", "stream_options", "request_id", "input", "service_tier"),
    *("conversation", "prompt", "previous_input_messages", "instructions", "tools"),
)
"""Not taken from the stored request: said anew, among the input items, or taken from the response."""
_EMPTY: Final[tuple[object, ...]] = (None, [], {}, "")
_REDACTED: Final = "<redacted>"


@dataclass(frozen=True, slots=True)
class StoredRequest:
    """A request without `input`, `background` and `store`."""

    parameters: Mapping[str, Any]
    notes: Sequence[str]
    """Differences from the original request, in sentences."""
    obstacle: str
    """Why it cannot be sent as it is; empty if it can."""


def stored_request(echo: str, asked: str | None, *, kind: str, seed: int | None) -> StoredRequest:
    """The request from the JSON of the row's columns. Raises msgspec.DecodeError."""
    repeated: dict[str, Any] = msgspec.json.decode(echo)
    source: dict[str, Any] = msgspec.json.decode(asked) if asked else repeated
    known = set(CreateResponse.__struct_fields__) - set(_OF_ITS_RUN)
    parameters = {name: value for name, value in source.items() if name in known}
    for name, value in parameters.items():
        if isinstance(value, dict):
            parameters[name] = {key: element for key, element in value.items() if element is not None}
    for name in ("instructions", "tools"):
        parameters[name] = repeated.get(name)
    parameters["seed"] = seed
    parameters = {name: value for name, value in parameters.items() if value not in _EMPTY}
    if "tools" not in parameters:
        parameters.pop("tool_choice", None)
    return StoredRequest(parameters, _notes(repeated, asked, kind), _obstacle(repeated, kind))


def _notes(echo: Mapping[str, Any], asked: str | None, kind: str) -> list[str]:
    notes = []
    if asked is None:
        notes.append(
            "Parameters that a response does not repeat, such as top_k, stop and logit_bias, are not stored "
            "after its end; their defaults hold."
        )
    if kind == "chat":
        notes.append("It was a chat completion, and is run as a response.")
    if echo.get("conversation"):
        notes.append(
            "It belongs to a conversation. The new response gets the items before it as input, and is not "
            "added to the conversation."
        )
    if echo.get("prompt"):
        notes.append("The items of its stored prompt are part of the input.")
    if any(tool.get("type") == "mcp" and tool.get("server_url") for tool in echo.get("tools") or ()):
        notes.append("Headers and tokens for MCP servers are never stored.")
    return notes


def _obstacle(echo: Mapping[str, Any], kind: str) -> str:
    if kind == "completion":
        return "A legacy completion has a prompt without messages, which no response can repeat."
    for tool in echo.get("tools") or ():
        if _REDACTED in str(tool.get("server_url") or ""):
            label = str(tool.get("server_label"))[:100]
            return f"The address of the MCP server {label} is not stored whole; write it into the request."
    return ""


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
    caller = console.caller
    if caller.tenant != tenant:
        settings = console.database.read(lambda connection: tenants.settings_of(connection, tenant))
        caller = replace(caller, tenant=tenant, settings=settings)
    try:
        if not edited and source.request.obstacle:
            raise InvalidRequest(source.request.obstacle)
        parameters = read_edited(edited) if edited else source.request.parameters
        accepted = admit(console, caller, request_body(parameters, source.items))
    except (ApiError, DecodeFailure) as error:
        refusal = to_api_error(error)
        text = edited or edited_text(source.request.parameters, source.items)[0]
        return _page(console, source, text, str(refusal), refusal.status)
    name, details = ids.response_id(accepted), {"of": source.facts["response"], "changed": bool(edited)}
    with console.database.begin() as connection:
        console.actor.record(connection, "response.run_again", tenant, name, details)
    return console.redirect(f"/console/responses/{name}", compare=source.facts["response"])


def admit(console: ConsoleRequest, caller: Caller, body: bytes) -> UUID:
    """The id of the new response, which counts as the caller's. Raises ApiError or DecodeFailure."""
    input_images.SOURCE.set(console.services.model.image_source(caller.tenant))
    params = decode(body, CreateResponse, endpoint="responses")
    (accepted,) = console.services.admission.admit(caller, [params])
    return accepted.id


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
