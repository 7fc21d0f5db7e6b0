"""POST /v1/chat/completions and /v1/completions: a response for each choice, answered as one completion.

And the chat completions that were stored: list, retrieve, update, delete, and their messages.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from uuid import UUID

import msgspec

from server.admission.accept import AcceptedResponse
from server.admission.request_validation import naming_sent_fields, with_generation_config
from server.completions import chat, legacy, stored_chat
from server.completions.chunk_stream import ChunkFormat, ChunkStream, FinalChoice, failure_message
from server.completions.shared_parameters import includes_continuous_usage, includes_usage
from server.delivery.stored_responses import StreamReader
from server.errors import Conflict, ModelFailed, NotFound
from server.http import query_and_headers as query
from server.http.asgi.answers import Answer, EventStream, FinalResponse, StreamPosition
from server.http.handler_services import ApiCall
from server.http.handlers import responses
from server.http.json_responses import json_response
from server.http.operation import RouteTable
from server.protocol import ids
from server.protocol.completions import objects
from server.protocol.completions.chat_messages import read_messages
from server.protocol.completions.requests import ChatRequest, TextRequest, UpdateCompletion
from server.protocol.decode import MAX_TOKEN_VALUES, decode, decode_as
from server.protocol.error_object import ErrorBody
from server.protocol.list_pages import CompletionPage, MessagePage, Page
from server.store.content.response_pages import Filters

routes = RouteTable("stored_chat_completions", "/v1")
_CHATS = "/chat/completions"
_CHAT = "/chat/completions/{completion_id}"


@routes(
    f"POST {_CHATS}",
    "Create chat completion; with `stream`, in chunks as they come.",
    objects.ChatCompletion,
    takes=ChatRequest,
    streams=(objects.Chunk, ErrorBody),
    parameters=(responses.IDEMPOTENCY_KEY,),
    refuses=responses.RUN_ERRORS,
    operation_id="chat_completions.create",
)
def create_chat(call: ApiCall) -> Answer:
    params = decode(call.body, ChatRequest, endpoint="chat")
    query.apply_body_request_id(call.request, params.request_id)
    with naming_sent_fields(params):
        params = with_generation_config(params, "max_completion_tokens")
        chat.validate_chat_request(params)
        messages = read_messages(params.messages)
        choices = [chat.as_response_request(params, choice) for choice in range(params.n or 1)]
        accepted = call.services.admission.admit(
            call.caller, choices, responses.idempotency_key(call), messages
        )
    shape = replace(
        chat.format_of(choices[0], accepted[0].id, messages),
        include_usage=includes_usage(params),
        continuous_usage=includes_continuous_usage(params),
    )
    if params.stream:
        return _chunks(call, accepted, shape)
    return _completion(call, accepted, partial(chat.chat_completion, shape))


def _chunks(call: ApiCall, accepted: Sequence[AcceptedResponse], shape: ChunkFormat) -> Answer:
    """The stream of chunks that the responses' events are rewritten to."""
    readers = [StreamReader(call.database, call.caller.tenant, made.id) for made in accepted]
    return EventStream(
        *(StreamPosition(made.channel, reader.read) for made, reader in zip(accepted, readers, strict=True)),
        keep_alive=call.services.config.keep_alive_seconds,
        headers=call.id_header,
        transform=ChunkStream(shape),
    )


def _completion(
    call: ApiCall,
    accepted: Sequence[AcceptedResponse],
    completion_of: Callable[[Sequence[FinalChoice]], msgspec.Struct],
) -> Answer:
    """The completion of the responses, when all have ended."""

    def render(finals: Sequence[bytes]) -> Answer:
        choices = [decode_as(final, FinalChoice) for final in finals]
        if (message := failure_message(choices)) is not None:
            raise ModelFailed(message)
        return json_response(call.request, completion_of(choices))

    return FinalResponse(
        *(made.channel for made in accepted),
        fallback=_raise_deleted,
        render=render,
        headers=call.id_header,
        read_stored=responses.stored_end_reader(call, [(made.id, made.channel) for made in accepted]),
    )


def _raise_deleted() -> Answer:
    raise Conflict("The completion was deleted while it was generated.")


@routes(
    f"GET {_CHATS}",
    "List chat completions.",
    CompletionPage,
    parameters=(*query.PAGE, query.MODEL, query.METADATA),
    operation_id="stored_chat_completions.completions",
)
def list_chats(call: ApiCall) -> Page[msgspec.Raw]:
    page = query.page_request(call.request, "asc")
    model, metadata = query.text(call.request, "model"), query.metadata(call.request)
    filters = Filters(model=model, metadata=metadata, completions=True)
    return stored_chat.list_completions(call.database, call.caller.tenant, filters, page)


@routes(f"GET {_CHAT}", "Get chat completion.", objects.StoredCompletion)
def retrieve(call: ApiCall) -> objects.StoredCompletion:
    return stored_chat.find(call.database, call.caller.tenant, _completion_id(call))


@routes(
    f"POST {_CHAT}",
    "Update chat completion: replace its metadata.",
    objects.StoredCompletion,
    takes=UpdateCompletion,
)
def update(call: ApiCall) -> objects.StoredCompletion:
    first, params = _completion_id(call), decode(call.body, UpdateCompletion)
    return stored_chat.update(call.database, call.caller.tenant, first, params.metadata)


@routes(f"DELETE {_CHAT}", "Delete chat completion.", objects.DeletedCompletion)
def delete(call: ApiCall) -> objects.DeletedCompletion:
    """A running one, too."""
    first = _completion_id(call)
    with call.database.begin() as connection:
        running = stored_chat.delete(connection, call.caller.tenant, first)
        responses.record_deletion(connection, call, ids.completion_id(first))
    for response in running:
        call.services.request_stop(response, "deleted")
    return objects.DeletedCompletion(ids.completion_id(first))


@routes(f"GET {_CHAT}/messages", "Get chat messages.", MessagePage, parameters=query.PAGE)
def messages(call: ApiCall) -> Page[msgspec.Raw]:
    page, first = query.page_request(call.request, "asc"), _completion_id(call)
    return stored_chat.list_messages(call.database, call.caller.tenant, first, page)


@routes(
    "POST /completions",
    "Create completion of texts or token ids; with `stream`, in chunks as they come.",
    objects.TextCompletion,
    takes=TextRequest,
    streams=(objects.TextCompletion, ErrorBody),
    parameters=(responses.IDEMPOTENCY_KEY,),
    refuses=responses.RUN_ERRORS,
    operation_id="completions.create",
)
def create_text(call: ApiCall) -> Answer:
    params = decode(call.body, TextRequest, MAX_TOKEN_VALUES, endpoint="completions")
    query.apply_body_request_id(call.request, params.request_id)
    with naming_sent_fields(params):
        params = with_generation_config(params, "max_tokens")
        legacy.validate_legacy_request(params)
        prompts = legacy.read_prompts(params, call.services.model, call.caller.tenant)
        choices = legacy.as_response_requests(params, prompts)
        accepted = call.services.admission.admit(
            call.caller, choices, responses.idempotency_key(call), [], generate=params.max_tokens != 0
        )
    shape = legacy.format_of(params, prompts, accepted[0].id)
    if params.stream:
        return _chunks(call, accepted, shape)
    return _completion(call, accepted, partial(legacy.text_completion, shape))


def _completion_id(call: ApiCall) -> UUID:
    name = call.request.path_params["completion_id"]
    first = ids.parse_completion_id(name)
    if first is None:
        raise NotFound(f"Chat completion with id '{name[:100]}' not found.")
    return first
