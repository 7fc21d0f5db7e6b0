"""The playground: a small chat on any model, whose answers are stored and can be watched again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from server.console.console_request import ConsoleRequest
from server.console.contents.item_view import ItemView, item_views
from server.console.contents.stored_request import stored_request
from server.console.playground import EFFORTS, FIELDS, code_samples, request_body
from server.errors import ApiError, InvalidRequest
from server.http.asgi.answers import Answer
from server.http.json_responses import to_api_error
from server.protocol import ids, input_images
from server.protocol.decode import decode
from server.protocol.error_object import DecodeFailure
from server.protocol.responses.request import CreateResponse
from server.protocol.responses.response import TERMINAL_STATUSES
from server.store.console import response_detail
from server.store.console.response_detail import ResponseDetail, StoredItem
from server.store.content import stored_items


@dataclass(frozen=True, slots=True)
class _Conversation:
    """What the page shows of the responses so far."""

    items: Sequence[ItemView] = ()
    last: str = ""
    """The response that the next message goes on from."""
    runs: bool = False
    pending_calls: Sequence[StoredItem] = ()
    """Function calls without an output."""
    request: Mapping[str, Any] = field(default_factory=dict)
    """That of the last response."""


def show(console: ConsoleRequest) -> Answer:
    """GET /console/playground; `response` is the last one of the conversation"""
    name = console.argument("response")
    conversation = _read(console, name) if name else _Conversation()
    return _page(console, conversation, _form_of(conversation.request), "")


def send(console: ConsoleRequest) -> Answer:
    """POST /console/playground: begins a response; its page follows it, also after a reload"""
    services, caller = console.services, console.caller
    try:
        body = msgspec.json.encode(request_body(console.form))
        wanted = decode(body, CreateResponse, endpoint="responses")
        input_images.SOURCE.set(services.model.image_source(caller.tenant))
        (accepted,) = services.admission.admit(caller, [wanted])
    except (ApiError, DecodeFailure) as error:
        previous = console.form.get("previous_response_id", "")
        refusal = to_api_error(error)
        conversation = _read(console, previous) if previous else _Conversation()
        return _page(console, conversation, console.form, str(refusal), refusal.status)
    return console.redirect("/console/playground", response=ids.response_id(accepted.id))


def _page(
    console: ConsoleRequest,
    conversation: _Conversation,
    form: Mapping[str, str],
    message: str,
    status: int = 200,
) -> Answer:
    base_url = f"{console.request.url.scheme}://{console.request.url.netloc}/v1"
    return console.page(
        "playground.html",
        status,
        conversation=conversation,
        form={"background": "", **dict.fromkeys(FIELDS, ""), "input": "", **form},
        message=message,
        models=console.caller.usable_models(console.services.model.names),
        efforts=EFFORTS,
        samples=code_samples(conversation.request, base_url) if conversation.request else {},
    )


def _read(console: ConsoleRequest, name: str) -> _Conversation:
    """The conversation that ends with a response of the caller's tenant. Raises InvalidRequest."""
    response, tenant = ids.parse_response_id(name), console.caller.tenant
    detail = None
    if response is not None:
        detail = console.services.database.read(
            lambda connection: response_detail.read_detail(connection, response, contents=True)
        )
    if response is None or detail is None or detail.facts["tenant"] != tenant:
        raise InvalidRequest(f"Your tenant has no response {name[:100]}.", param="response")
    chain = [relative.id for relative in detail.chain]
    found = console.services.database.read(
        lambda connection: response_detail.items_of(connection, tenant, chain)
    )
    answered = {item.call_id for item in found if item.type == "function_call_output"}
    calls = [item for item in found if item.type == "function_call" and item.call_id not in answered]
    return _Conversation(
        items=item_views(found),
        last=name,
        runs=detail.facts["status"] not in TERMINAL_STATUSES,
        pending_calls=calls,
        request=_request_of(console, detail),
    )


def _request_of(console: ConsoleRequest, detail: ResponseDetail) -> dict[str, Any]:
    """The request of a response, put together again from its parameters and its input items."""
    assert detail.request is not None
    facts = detail.facts
    parameters = stored_request(detail.request, detail.asked, kind=facts["kind"], seed=None).parameters
    inputs = console.services.database.read(
        lambda connection: stored_items.input_items(connection, facts["tenant"], facts["id"])
    )
    of_run = {"background": facts["background"], "store": True, "stream": True}
    return {**parameters, "input": [msgspec.json.decode(payload) for payload in inputs], **of_run}


def _form_of(request: Mapping[str, Any]) -> dict[str, str]:
    """The form's fields as they were for that request."""
    form = {name: str(request[name]) for name in FIELDS if isinstance(request.get(name), str | int | float)}
    if isinstance(effort := (request.get("reasoning") or {}).get("effort"), str):
        form["effort"] = effort
    if request.get("tools"):
        form["tools"] = msgspec.json.format(msgspec.json.encode(request["tools"])).decode()
    wanted = (request.get("text") or {}).get("format")
    if wanted and wanted.get("type") != "text":
        form["format"] = msgspec.json.format(msgspec.json.encode(wanted)).decode()
    return {**form, "background": "1" if request.get("background") else ""}
