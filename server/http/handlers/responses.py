"""Handlers of /v1/responses: create, retrieve, replay, cancel, delete, lists, input_tokens and compact."""

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Literal, get_args
from uuid import UUID

from msgspec import Meta, Raw, structs
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response as HttpResponse

from server.admission.accept import AcceptedResponse
from server.admission.compact_endpoint import read_summary, start_compaction
from server.admission.prepare_runs import IdempotencyKey
from server.admission.request_validation import naming_sent_fields
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
from server.errors import Conflict, InvalidRequest, NotFound, TooManyRequests
from server.http import query_and_headers as query
from server.http.asgi.answers import Answer, EventStream, FinalResponse, StreamPosition
from server.http.handler_services import ApiCall, Services
from server.http.json_responses import json_response
from server.http.operation import Parameter, RouteTable
from server.logs.context import note_responses
from server.prompting.engine_request import SEALED_REASONING
from server.prompting.structured_outputs import with_modern_names
from server.protocol import ids
from server.protocol.decode import decode
from server.protocol.list_pages import ItemPage, Page, ResponsePage
from server.protocol.responses import response as objects
from server.protocol.responses.events import EVENT_ID, StreamEvent
from server.protocol.responses.request import CountInput, CreateResponse
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
RUN_ERRORS = (NotFound, Conflict, TooManyRequests)
"""Errors of every route that begins a response."""
IDEMPOTENCY_KEY = Parameter(
    "Idempotency-Key",
    Annotated[str, Meta(min_length=1, max_length=MAX_KEY_LENGTH)],
    "For a day the same key with the same body gives the same response.",
    place="header",
)
_NAMES_OF = Literal["openai", "open-responses"]
_EVENT_NAMES = Parameter(
    EVENT_NAMES, _NAMES_OF, "The API whose names the events of a stream have.", place="header"
)
_EVENT = Annotated[int, Meta(ge=0, lt=10**9)] | Annotated[str, Meta(pattern=EVENT_ID)]
_ONE = "/{response_id}"

routes = RouteTable("responses", "/v1/responses")


@routes(
    "POST ",
    "Create a model response; with `stream`, its events are sent as they come.",
    objects.Response,
    takes=CreateResponse,
    streams=(StreamEvent,),
    parameters=(IDEMPOTENCY_KEY, _EVENT_NAMES),
    refuses=RUN_ERRORS,
)
def create(call: ApiCall) -> Answer | objects.Response:
    services, caller = call.services, call.caller
    params = decode(call.body, CreateResponse, endpoint="responses")
    query.apply_body_request_id(call.request, params.request_id)
    _event_names(services, call.request)  # which refuses before there is a response
    with naming_sent_fields(params):
        (admitted,) = services.admission.admit(caller, [params], idempotency_key(call))
    if params.stream:
        reader = StreamReader(services.database, caller.tenant, admitted.id)
        return event_stream(services, call.request, admitted.channel, reader, 0, admitted.begun)
    if params.background:
        return _as_accepted(_read(call, admitted.id), admitted)
    return _final_response(call, admitted.id, admitted.channel)


def bounded_idempotency_key(request: Request) -> str | None:
    """The request's idempotency key. Raises InvalidRequest for one that is empty or too long."""
    key = request.headers.get("idempotency-key")
    if key is not None and not 1 <= len(key) <= MAX_KEY_LENGTH:
        sentence = f"An Idempotency-Key has 1 to {MAX_KEY_LENGTH} characters."
        raise InvalidRequest(sentence, param="Idempotency-Key")
    return key


def idempotency_key(call: ApiCall) -> IdempotencyKey | None:
    """The request's idempotency key, with what it must stay the same as. Raises InvalidRequest."""
    key = bounded_idempotency_key(call.request)
    if key is None:
        return None
    return IdempotencyKey(key, hashlib.sha256(call.request.url.path.encode() + b"\n" + call.body).digest())


@routes(
    "GET ",
    "List stored responses; an extension.",
    ResponsePage,
    parameters=(
        *query.PAGE,
        query.MODEL,
        Parameter("status", objects.Status, "Filter by status."),
        query.METADATA,
    ),
    operation_id="response_lists.responses",
)
def list_stored(call: ApiCall) -> Page[Raw]:
    statuses: tuple[objects.Status, ...] = get_args(objects.Status)
    filters = Filters(
        model=query.text(call.request, "model"),
        status=query.one_of(call.request, "status", statuses),
        metadata=query.metadata(call.request),
    )
    return list_responses(call.database, call.caller.tenant, filters, query.page_request(call.request))


@routes(
    "POST /input_tokens",
    "Get input token counts.",
    objects.InputTokens,
    takes=CountInput,
    refuses=(NotFound,),
    operation_id="input_tokens.count",
)
def count_input_tokens(call: ApiCall) -> objects.InputTokens:
    """`model` may be left out, and `input`, where history says it all."""
    request = decode(call.body, CountInput, endpoint="responses")
    with naming_sent_fields(request):
        params = structs.replace(
            with_modern_names(request),
            model=call.services.model.name if request.model is None else request.model,
            input=[] if request.input is None else request.input,
        )
        return objects.InputTokens(call.services.admission.preparation.count_tokens(call.caller, params))


@routes(
    "POST /compact",
    "Compact a response.",
    objects.CompactedResponse,
    takes=CreateResponse,
    refuses=RUN_ERRORS,
    operation_id="compact.create",
)
def compact(call: ApiCall) -> Answer | objects.CompactedResponse:
    params, admission = decode(call.body, CreateResponse, endpoint="responses"), call.services.admission
    if params.input is None:
        params = structs.replace(params, input=[])
    compacting = start_compaction(call.database, call.services.model, call.caller, params, admission.history)
    if compacting.summary.is_short:
        return compacting.finish(None)
    (admitted,) = admission.admit(call.caller, [compacting.summary.make_request()[0]])
    return FinalResponse(
        admitted.channel,
        fallback=_raise_lost,
        render=lambda finals: json_response(call.request, compacting.finish(read_summary(finals[0]))),
        headers=call.id_header,
    )


def _raise_lost() -> Answer:
    raise Conflict("The summary was lost while it was written; try again.")


@routes(
    f"GET {_ONE}",
    "Get a model response; with `stream`, its events from any of them on.",
    objects.Response,
    streams=(StreamEvent,),
    parameters=(
        Parameter("stream", bool, "Stream the response's events: those so far, and those to come."),
        Parameter(
            "starting_after",
            _EVENT,
            "The sequence number or the `id:` of the event after which the events begin. With an `id:`, "
            "it is an error (`stream_forked`) if the database has lost that event.",
        ),
        Parameter(
            "Last-Event-ID",
            _EVENT,
            "`starting_after`, as a browser's EventSource sends it; 204 once there is nothing after it.",
            place="header",
        ),
        Parameter("include_obfuscation", bool, "Accepted and ignored: events are never padded."),
        query.INCLUDE,
        _EVENT_NAMES,
    ),
    otherwise={204: None},
)
def retrieve(call: ApiCall) -> Answer | objects.Response:
    request, response, include = call.request, response_id(call.request), query.include_values(call.request)
    query.flag(request, "include_obfuscation")
    if not query.flag(request, "stream"):
        stored = _read(call, response)
        if SEALED_REASONING in include:
            stored = seal_reasoning(stored, call.services.model.seal, call.caller.tenant)
        return stored
    after = query.resume_after(request)
    reader = StreamReader(call.database, call.caller.tenant, response)
    begun = reader.resume(*after)
    if begun is None:
        raise response_not_found(request)
    if after.is_event_source and begun.ended and not begun.frames:
        return HttpResponse(status_code=204, headers=call.id_header)
    channel = subscribe(call.services.hub, reader, after.position, begun)
    return event_stream(call.services, request, channel, reader, after.position, begun)


def subscribe(hub: Hub, reader: StreamReader, position: int, begun: FramePage) -> Channel | None:
    """The channel of a response of which `begun` has been read from `position` on; None if it has ended.

    The store is asked once more: a commit after the first read was published before there was a channel.
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


@routes(f"DELETE {_ONE}", "Delete a model response.", objects.Deleted)
def delete(call: ApiCall) -> objects.Deleted:
    response = response_id(call.request)
    with call.database.begin() as connection:
        running = deletion.delete(connection, call.caller.tenant, response)
        if running is not None:
            record_deletion(connection, call, ids.response_id(response))
        crashpoint("delete.written")
    crashpoint("delete.marked")
    if running is None:
        raise response_not_found(call.request)
    if running:
        call.services.request_stop(response, "deleted")
    return objects.Deleted(ids.response_id(response))


def record_deletion(connection: Connection, call: ApiCall, target: str) -> None:
    """Adds to the audit trail what this request deletes, in its transaction."""
    caller, name = call.caller, call.request.state.request_id
    audit_trail.record(connection, caller.actor, "response.delete", caller.tenant, target, request_id=name)


@routes(f"POST {_ONE}/cancel", "Cancel a response.", objects.Response, refuses=(InvalidRequest, NotFound))
def cancel(call: ApiCall) -> Answer | objects.Response:
    """A running foreground response, too."""
    services, tenant, response = call.services, call.caller.tenant, response_id(call.request)
    stored = _read(call, response)
    if stored.status in objects.TERMINAL_STATUSES:
        if not stored.background and stored.status != "cancelled":
            raise InvalidRequest("Cannot cancel a synchronous response.")
        return stored
    channel = services.hub.watch(tenant, response)
    services.database.retry(
        partial(claims.request_cancel, tenant=tenant, response_id=response, reason="client_request")
    )
    crashpoint("cancel.marked")
    services.request_stop(response, "client_request")
    return _final_response(call, response, channel, CANCEL_SECONDS)


@routes(
    f"GET {_ONE}/input_items",
    "List input items.",
    ItemPage,
    parameters=(*query.PAGE, query.INCLUDE),
    operation_id="response_lists.input_items",
)
def input_items(call: ApiCall) -> Page[Raw]:
    """Pictures' URLs are given only if `include` names them."""
    page_request = query.page_request(call.request)
    page = list_input_items(
        call.database,
        call.caller.tenant,
        response_id(call.request),
        page_request,
        image_urls=IMAGE_URLS in query.include_values(call.request),
    )
    if page is None:
        raise response_not_found(call.request)
    return page


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
    call: ApiCall, response: UUID, channel: Channel, seconds: float | None = None
) -> FinalResponse:
    return FinalResponse(
        channel,
        fallback=lambda: json_response(call.request, _read(call, response)),
        headers=call.id_header,
        seconds=seconds,
        read_stored=stored_end_reader(call, [(response, channel)]),
    )


def stored_end_reader(
    call: ApiCall, awaited: Sequence[tuple[UUID, Channel]]
) -> Callable[[], Sequence[bytes] | None] | None:
    """Reads the final responses from the store; None if all of them run here, where no end is missed."""
    if all(call.services.hub.running(response) is channel for response, channel in awaited):
        return None
    ids = [response for response, _ in awaited]
    return lambda: final_responses(call.database, call.caller.tenant, ids)


def _as_accepted(stored: objects.Response, admitted: AcceptedResponse) -> objects.Response:
    """A new background response as it was accepted, `queued`, also if a replica was faster."""
    if admitted.begun is None or stored.status != "in_progress":
        return stored
    return structs.replace(stored, status="queued", output=[])


def _read(call: ApiCall, response: UUID) -> objects.Response:
    stored = find_response(call.database, call.caller.tenant, response)
    if stored is None:
        raise response_not_found(call.request)
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
