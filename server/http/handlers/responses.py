"""Handlers of /v1/responses: create, retrieve, replay, cancel, delete, lists, input_tokens and compact."""

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import get_args
from uuid import UUID

import msgspec
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response as HttpResponse

from server.admission.accept import AcceptedResponse
from server.admission.compact import read_summary, start_compaction
from server.admission.prepare_runs import IdempotencyKey
from server.caller import Caller
from server.crashpoints import crashpoint
from server.delivery.frames import FramePage, OpenResponsesNames
from server.delivery.hub import Channel, Hub
from server.delivery.stored_responses import (
    StreamReader,
    final_responses,
    find_response,
    list_input_items,
    list_responses,
)
from server.errors import Conflict, InvalidRequest, NotFound
from server.hosted_tools.mcp_discovery import ignored_types
from server.http import query_and_headers
from server.http.asgi.answers import Answer, EventStream, FinalResponse, StreamPosition
from server.http.handlers.own_fields import naming_own_fields
from server.http.json_responses import json_response
from server.http.query_and_headers import apply_body_request_id
from server.http.services import Services
from server.logs.context import note_responses
from server.prompting.request_parameters import SEALED_REASONING
from server.prompting.structured_outputs import with_modern_names
from server.protocol import ids
from server.protocol.decode import decode
from server.protocol.responses.request import CountInput, CreateResponse
from server.protocol.responses.response import TERMINAL_STATUSES, Deleted, InputTokens, Response, Status
from server.sealing.sealed_items import seal_reasoning
from server.store.administration import audit_trail
from server.store.cluster import claims
from server.store.content import deletion
from server.store.content.response_pages import Filters
from server.store.database import Connection

CANCEL_SECONDS = 10.0
"""How long a cancel waits for the end that it asked for; then it answers with what there is."""
MAX_KEY_LENGTH = 255
IMAGE_URLS = "message.input_image.image_url"
"""The value of `include` with which input items have the URLs of their pictures."""
EVENT_NAMES = "Holdfast-Event-Names"
"""The request header that chooses the names of stream events."""

IGNORED_TOOLS = "holdfast-ignored-tools"
"""The response header with the types of declared tools that the model was not offered."""
MAX_IGNORED_TOOLS = 1024
"""Characters of that header."""


def create(services: Services, caller: Caller, request: Request, body: bytes) -> Answer:
    """POST /v1/responses"""
    params = decode(body, CreateResponse, endpoint="responses")
    apply_body_request_id(request, params.request_id)
    _event_names(services, request)  # which refuses before there is a response
    with naming_own_fields(params):
        (admitted,) = services.admission.admit(caller, [params], idempotency_key(request, body))
    if params.tools and (ignored := ignored_types(services.tool_loop.servers, caller, params.tools)):
        named = ", ".join(kind for kind in ignored if kind.isascii() and kind.isidentifier())
        request.state.answer_headers = {IGNORED_TOOLS: named[:MAX_IGNORED_TOOLS]}
    if params.stream:
        reader = StreamReader(services.database, caller.tenant, admitted.id)
        return event_stream(services, request, admitted.channel, reader, 0, admitted.begun)
    if params.background:
        return json_response(request, _as_accepted(_read(services, caller, request, admitted.id), admitted))
    return _final_response(services, caller, request, admitted.id, admitted.channel)


def idempotency_key(request: Request, body: bytes) -> IdempotencyKey | None:
    """The request's idempotency key, with what it must stay the same as. Raises InvalidRequest."""
    key = request.headers.get("idempotency-key")
    if key is None:
        return None
    if not 1 <= len(key) <= MAX_KEY_LENGTH:
        raise InvalidRequest(
            f"An Idempotency-Key has 1 to {MAX_KEY_LENGTH} characters.", param="Idempotency-Key"
        )
    return IdempotencyKey(key, hashlib.sha256(request.url.path.encode() + b"\n" + body).digest())


def retrieve(services: Services, caller: Caller, request: Request, _body: bytes) -> Answer:
    """GET /v1/responses/{response_id}"""
    response = response_id(request)
    include = query_and_headers.include_values(request)
    query_and_headers.flag(request, "include_obfuscation")
    if not query_and_headers.flag(request, "stream"):
        stored = _read(services, caller, request, response)
        if SEALED_REASONING in include:
            stored = seal_reasoning(stored, services.model.seal, caller.tenant)
        return json_response(request, stored)
    after = query_and_headers.resume_after(request)
    reader = StreamReader(services.database, caller.tenant, response)
    begun = reader.resume(*after)
    if begun is None:
        raise response_not_found(request)
    if after.is_event_source and begun.ended and not begun.frames:
        return HttpResponse(status_code=204, headers={"x-request-id": request.state.request_id})
    channel = subscribe(services.hub, reader, after.position, begun)
    return event_stream(services, request, channel, reader, after.position, begun)


def subscribe(hub: Hub, reader: StreamReader, position: int, begun: FramePage) -> Channel | None:
    """The channel of a response of which `begun` has been read from `position` on; None if it has ended.

    The store is asked once more, because a commit after the first read was published before the channel
    existed. If there was one, the stream reads it from the store.
    """
    if reader.ended:
        return None
    channel = hub.watch(reader.tenant, reader.response, ends_unread=not reader.background)
    if begun.frames:
        end = position + begun.length
        more = reader.read(end)
        if not more.frames and not more.ended:
            hub.begin_at(channel, end)
    return channel


def cancel(services: Services, caller: Caller, request: Request, _body: bytes) -> Answer:
    """POST /v1/responses/{response_id}/cancel, for running foreground responses too"""
    response = response_id(request)
    stored = _read(services, caller, request, response)
    if stored.status in TERMINAL_STATUSES:
        if not stored.background and stored.status != "cancelled":
            raise InvalidRequest("Cannot cancel a synchronous response.")
        return json_response(request, stored)
    channel = services.hub.watch(caller.tenant, response)
    request_cancel = partial(
        claims.request_cancel, tenant=caller.tenant, response_id=response, reason="client_request"
    )
    services.database.retry(request_cancel)
    crashpoint("cancel.marked")
    services.request_stop(response, "client_request")
    return _final_response(services, caller, request, response, channel, CANCEL_SECONDS)


def delete(services: Services, caller: Caller, request: Request, _body: bytes) -> HttpResponse:
    """DELETE /v1/responses/{response_id}"""
    response = response_id(request)
    with services.database.begin() as connection:
        running = deletion.delete(connection, caller.tenant, response)
        if running is not None:
            record_deletion(connection, caller, request, "response.delete", ids.response_id(response))
        crashpoint("delete.written")
    crashpoint("delete.marked")
    if running is None:
        raise response_not_found(request)
    if running:
        services.request_stop(response, "deleted")
    return json_response(request, Deleted(ids.response_id(response)))


def record_deletion(
    connection: Connection, caller: Caller, request: Request, action: str, target: str
) -> None:
    """Adds to the audit trail what this request deletes, in its transaction."""
    name = request.state.request_id
    audit_trail.record(connection, caller.actor, action, caller.tenant, target, request_id=name)


def count_input_tokens(services: Services, caller: Caller, request: Request, body: bytes) -> HttpResponse:
    """POST /v1/responses/input_tokens; `model` may be left out, and `input`, where history says it all"""
    asked = decode(body, CountInput, endpoint="responses")
    with naming_own_fields(asked):
        params = msgspec.structs.replace(
            with_modern_names(asked),
            model=services.model.name if asked.model is None else asked.model,
            input=[] if asked.input is None else asked.input,
        )
        tokens = services.admission.preparation.count_tokens(caller, params)
    return json_response(request, InputTokens(tokens))


def list_stored(services: Services, caller: Caller, request: Request, _body: bytes) -> HttpResponse:
    """GET /v1/responses"""
    asked = query_and_headers.page_request(request)
    status = query_and_headers.text(request, "status")
    if status is not None and status not in get_args(Status):
        raise InvalidRequest(f"status must be one of {', '.join(get_args(Status))}.", param="status")
    filters = Filters(
        model=query_and_headers.text(request, "model"),
        status=status,  # type: ignore[arg-type]  # looked up in its own values
        metadata=query_and_headers.metadata(request),
    )
    return json_response(request, list_responses(services.database, caller.tenant, filters, asked))


def input_items(services: Services, caller: Caller, request: Request, _body: bytes) -> HttpResponse:
    """GET /v1/responses/{response_id}/input_items; pictures' URLs only if `include` names them"""
    page = list_input_items(
        services.database,
        caller.tenant,
        response_id(request),
        query_and_headers.page_request(request),
        image_urls=IMAGE_URLS in query_and_headers.include_values(request),
    )
    if page is None:
        raise response_not_found(request)
    return json_response(request, page)


def compact(services: Services, caller: Caller, request: Request, body: bytes) -> Answer:
    """POST /v1/responses/compact"""
    params = decode(body, CreateResponse, endpoint="responses")
    if params.input is None:
        params = msgspec.structs.replace(params, input=[])
    compacting = start_compaction(
        services.database, services.model, caller, params, services.admission.history
    )
    if compacting.summary.is_short:
        return json_response(request, compacting.finish(None))
    (admitted,) = services.admission.admit(caller, [compacting.summary.make_request()[0]])
    return FinalResponse(
        admitted.channel,
        fallback=_raise_lost,
        render=lambda finals: json_response(request, compacting.finish(read_summary(finals[0]))),
        headers={"x-request-id": request.state.request_id},
    )


def _raise_lost() -> Answer:
    raise Conflict("The summary was lost while it was written; try again.")


def event_stream(
    services: Services,
    request: HTTPConnection,
    channel: Channel | None,
    reader: StreamReader,
    position: int,
    begun: FramePage | None,
) -> EventStream:
    """A response's events from a sequence number on, of which the first may be at hand."""
    return EventStream(
        StreamPosition(channel, reader.read, position, begun),
        keep_alive=services.config.keep_alive_seconds,
        headers={"x-request-id": request.state.request_id},
        transform=_event_names(services, request),
    )


def _event_names(services: Services, request: HTTPConnection) -> OpenResponsesNames | None:
    """Return the renaming of outgoing events that the request asks for, if any. Raises InvalidRequest."""
    names = request.headers.get(EVENT_NAMES, services.config.event_names)
    if names not in ("openai", "open-responses"):
        raise InvalidRequest(f"{EVENT_NAMES} must be openai or open-responses.", param=EVENT_NAMES)
    return OpenResponsesNames() if names == "open-responses" else None


def _final_response(
    services: Services,
    caller: Caller,
    request: Request,
    response: UUID,
    channel: Channel,
    seconds: float | None = None,
) -> FinalResponse:
    return FinalResponse(
        channel,
        fallback=lambda: json_response(request, _read(services, caller, request, response)),
        headers={"x-request-id": request.state.request_id},
        seconds=seconds,
        read_stored=stored_end_reader(services, caller, [(response, channel)]),
    )


def stored_end_reader(
    services: Services, caller: Caller, awaited: Sequence[tuple[UUID, Channel]]
) -> Callable[[], Sequence[bytes] | None] | None:
    """Reads the final responses from the store; None if all of them run here, where no end is missed."""
    if all(services.hub.running(response) is channel for response, channel in awaited):
        return None
    ids = [response for response, _ in awaited]
    return lambda: final_responses(services.database, caller.tenant, ids)


def _as_accepted(stored: Response, admitted: AcceptedResponse) -> Response:
    """A response for the background as it was accepted: a new one is `queued`, also if a replica was faster
    than this answer.
    """
    if admitted.begun is None or stored.status != "in_progress":
        return stored
    return msgspec.structs.replace(stored, status="queued", output=[])


def _read(services: Services, caller: Caller, request: Request, response: UUID) -> Response:
    stored = find_response(services.database, caller.tenant, response)
    if stored is None:
        raise response_not_found(request)
    return stored


def response_id(request: Request) -> UUID:
    """The response that the address names. Raises NotFound for what cannot be one."""
    response = ids.parse_response_id(request.path_params["response_id"])
    if response is None:
        raise response_not_found(request)
    note_responses([response])
    return response


def response_not_found(request: Request) -> NotFound:
    """Return the error for another tenant's id, a deleted one and one never made alike."""
    return NotFound(f"Response with id '{request.path_params['response_id'][:100]}' not found.")
