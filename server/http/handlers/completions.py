"""POST /v1/chat/completions and /v1/completions: a response for each choice, answered as one completion.

And the chat completions that were stored: list, retrieve, update, delete, and their messages.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from uuid import UUID

import msgspec
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from server.admission.accept import AcceptedResponse
from server.admission.request_validation import with_generation_config
from server.caller import Caller
from server.completions import chat, legacy, stored_chat
from server.completions.chunk_stream import ChunkFormat, ChunkStream, FinalChoice, failure_message
from server.completions.shared_parameters import includes_continuous_usage, includes_usage
from server.delivery.stored_responses import StreamReader
from server.errors import Conflict, ModelFailed, NotFound
from server.http import query_and_headers
from server.http.asgi.answers import Answer, EventStream, FinalResponse, StreamPosition
from server.http.handlers.own_fields import naming_own_fields
from server.http.handlers.responses import idempotency_key, record_deletion, stored_end_reader
from server.http.json_responses import json_response
from server.http.query_and_headers import apply_body_request_id
from server.http.services import Services
from server.protocol import ids
from server.protocol.completions.chat_messages import read_messages
from server.protocol.completions.objects import DeletedCompletion
from server.protocol.completions.requests import ChatRequest, TextRequest, UpdateCompletion
from server.protocol.decode import MAX_TOKEN_VALUES, decode, decode_as
from server.store.content.response_pages import Filters


def create_chat(services: Services, caller: Caller, request: Request, body: bytes) -> Answer:
    """POST /v1/chat/completions"""
    params = decode(body, ChatRequest, endpoint="chat")
    apply_body_request_id(request, params.request_id)
    with naming_own_fields(params):
        params = with_generation_config(params, "max_completion_tokens")
        chat.validate_chat_request(params)
        messages = read_messages(params.messages)
        choices = [chat.as_response_request(params, choice) for choice in range(params.n or 1)]
        accepted = services.admission.admit(caller, choices, idempotency_key(request, body), messages)
    shape = replace(
        chat.format_of(choices[0], accepted[0].id, messages),
        include_usage=includes_usage(params),
        continuous_usage=includes_continuous_usage(params),
    )
    if params.stream:
        return _chunks(services, caller, request, accepted, shape)
    return _completion(services, caller, request, accepted, partial(chat.chat_completion, shape))


def create_text(services: Services, caller: Caller, request: Request, body: bytes) -> Answer:
    """POST /v1/completions"""
    params = decode(body, TextRequest, MAX_TOKEN_VALUES, endpoint="completions")
    apply_body_request_id(request, params.request_id)
    with naming_own_fields(params):
        params = with_generation_config(params, "max_tokens")
        legacy.validate_legacy_request(params)
        prompts = legacy.read_prompts(params, services.model, caller.tenant)
        choices = legacy.as_response_requests(params, prompts)
        accepted = services.admission.admit(
            caller, choices, idempotency_key(request, body), [], generate=params.max_tokens != 0
        )
    shape = legacy.format_of(params, prompts, accepted[0].id)
    if params.stream:
        return _chunks(services, caller, request, accepted, shape)
    return _completion(services, caller, request, accepted, partial(legacy.text_completion, shape))


def _chunks(
    services: Services,
    caller: Caller,
    request: Request,
    accepted: Sequence[AcceptedResponse],
    shape: ChunkFormat,
) -> Answer:
    """The stream of chunks that the responses' events are rewritten to."""
    readers = [StreamReader(services.database, caller.tenant, made.id) for made in accepted]
    return EventStream(
        *(StreamPosition(made.channel, reader.read) for made, reader in zip(accepted, readers, strict=True)),
        keep_alive=services.config.keep_alive_seconds,
        headers={"x-request-id": request.state.request_id},
        transform=ChunkStream(shape),
    )


def _completion(
    services: Services,
    caller: Caller,
    request: Request,
    accepted: Sequence[AcceptedResponse],
    completion_of: Callable[[Sequence[FinalChoice]], msgspec.Struct],
) -> Answer:
    """The completion of the responses, when all have ended."""

    def render(finals: Sequence[bytes]) -> Answer:
        choices = [decode_as(final, FinalChoice) for final in finals]
        if (message := failure_message(choices)) is not None:
            raise ModelFailed(message)
        return json_response(request, completion_of(choices))

    return FinalResponse(
        *(made.channel for made in accepted),
        fallback=_raise_deleted,
        render=render,
        headers={"x-request-id": request.state.request_id},
        read_stored=stored_end_reader(services, caller, [(made.id, made.channel) for made in accepted]),
    )


def _raise_deleted() -> Answer:
    raise Conflict("The completion was deleted while it was generated.")


def list_chats(services: Services, caller: Caller, request: Request, _body: bytes) -> HttpResponse:
    """GET /v1/chat/completions"""
    page = query_and_headers.page_request(request, "asc")
    filters = Filters(
        model=query_and_headers.text(request, "model"),
        metadata=query_and_headers.metadata(request),
        completions=True,
    )
    listed = stored_chat.list_completions(services.database, caller.tenant, filters, page)
    return json_response(request, listed)


def retrieve_chat(services: Services, caller: Caller, request: Request, _body: bytes) -> HttpResponse:
    """GET /v1/chat/completions/{completion_id}"""
    return json_response(request, stored_chat.find(services.database, caller.tenant, _completion_id(request)))


def update_chat(services: Services, caller: Caller, request: Request, body: bytes) -> HttpResponse:
    """POST /v1/chat/completions/{completion_id}"""
    first = _completion_id(request)
    params = decode(body, UpdateCompletion)
    return json_response(
        request, stored_chat.update(services.database, caller.tenant, first, params.metadata)
    )


def delete_chat(services: Services, caller: Caller, request: Request, _body: bytes) -> HttpResponse:
    """DELETE /v1/chat/completions/{completion_id}, a running one too"""
    first = _completion_id(request)
    with services.database.begin() as connection:
        running = stored_chat.delete(connection, caller.tenant, first)
        record_deletion(connection, caller, request, "response.delete", ids.completion_id(first))
    for response in running:
        services.request_stop(response, "deleted")
    return json_response(request, DeletedCompletion(ids.completion_id(first)))


def list_messages(services: Services, caller: Caller, request: Request, _body: bytes) -> HttpResponse:
    """GET /v1/chat/completions/{completion_id}/messages"""
    page, first = query_and_headers.page_request(request, "asc"), _completion_id(request)
    listed = stored_chat.list_messages(services.database, caller.tenant, first, page)
    return json_response(request, listed)


def _completion_id(request: Request) -> UUID:
    text = request.path_params["completion_id"]
    first = ids.parse_completion_id(text)
    if first is None:
        raise NotFound(f"Chat completion with id '{text[:100]}' not found.")
    return first
