"""The table of HTTP routes: ROUTES and PUBLIC_ROUTES, each with its handler and its OpenAPI contract."""

from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from server.errors import (
    Conflict,
    ConversationLocked,
    InvalidRequest,
    NotFound,
    TooManyRequests,
)
from server.http import openapi
from server.http.admin_routes import ADMIN_ROUTES
from server.http.handlers import (
    completions,
    conversations,
    health,
    models_and_tokenizer,
    responses,
)
from server.http.handlers.health import Health, Version
from server.http.json_responses import json_response
from server.http.openapi import Operation, Parameter
from server.http.query_and_headers import INCLUDE, METADATA, PAGE
from server.http.services import Handler, Services
from server.http.webhook_routes import WEBHOOK_ROUTES
from server.protocol import conversations as conversation
from server.protocol import list_pages as pages
from server.protocol.completions.objects import (
    ChatCompletion,
    Chunk,
    DeletedCompletion,
    Detokenized,
    StoredCompletion,
    TextCompletion,
    Tokenized,
)
from server.protocol.completions.requests import (
    ChatRequest,
    DetokenizeRequest,
    TextRequest,
    TokenizeRequest,
    UpdateCompletion,
)
from server.protocol.error_object import ErrorBody
from server.protocol.responses import response
from server.protocol.responses.events import EVENT_ID, StreamEvent
from server.protocol.responses.items import Item
from server.protocol.responses.request import CountInput, CreateResponse

PublicHandler = Callable[[Services, Request, bytes], HttpResponse]

_EVENT_NAMES = Parameter(
    responses.EVENT_NAMES,
    Literal["openai", "open-responses"],
    "The API whose names the events of a stream have.",
    place="header",
)
_IDEMPOTENCY_KEY = Parameter(
    "Idempotency-Key",
    Annotated[str, Meta(min_length=1, max_length=responses.MAX_KEY_LENGTH)],
    "For a day the same key with the same body gives the same response.",
    place="header",
)
_RUN_ERRORS = (NotFound, Conflict, TooManyRequests)

ROUTES: list[Operation[Handler]] = [
    Operation(
        "POST /v1/responses",
        responses.create,
        "Create a model response; with `stream`, its events are sent as they come.",
        response.Response,
        takes=CreateResponse,
        streams=(StreamEvent,),
        parameters=(_IDEMPOTENCY_KEY, _EVENT_NAMES),
        refuses=_RUN_ERRORS,
    ),
    Operation(
        "GET /v1/responses",
        responses.list_stored,
        "List stored responses; an extension.",
        pages.ResponsePage,
        parameters=(
            *PAGE,
            Parameter("model", str, "Filter by model."),
            Parameter("status", response.Status, "Filter by status."),
            METADATA,
        ),
        operation_id="response_lists.responses",
    ),
    Operation(
        "POST /v1/responses/input_tokens",
        responses.count_input_tokens,
        "Get input token counts.",
        response.InputTokens,
        takes=CountInput,
        refuses=(NotFound,),
        operation_id="input_tokens.count",
    ),
    Operation(
        "POST /v1/responses/compact",
        responses.compact,
        "Compact a response.",
        response.CompactedResponse,
        takes=CreateResponse,
        refuses=_RUN_ERRORS,
        operation_id="compact.create",
    ),
    Operation(
        "GET /v1/responses/{response_id}",
        responses.retrieve,
        "Get a model response; with `stream`, its events from any of them on.",
        response.Response,
        streams=(StreamEvent,),
        parameters=(
            Parameter("stream", bool, "Stream the response's events: those so far, and those to come."),
            Parameter(
                "starting_after",
                Annotated[int, Meta(ge=0, lt=10**9)] | Annotated[str, Meta(pattern=EVENT_ID)],
                "The sequence number or the `id:` of the event after which the events begin. With an `id:`, "
                "it is an error (`stream_forked`) if the database has lost that event.",
            ),
            Parameter(
                "Last-Event-ID",
                Annotated[int, Meta(ge=0, lt=10**9)] | Annotated[str, Meta(pattern=EVENT_ID)],
                "`starting_after`, as a browser's EventSource sends it; 204 once there is nothing after it.",
                place="header",
            ),
            Parameter("include_obfuscation", bool, "Accepted and ignored: events are never padded."),
            INCLUDE,
            _EVENT_NAMES,
        ),
        otherwise={204: None},
    ),
    Operation(
        "DELETE /v1/responses/{response_id}", responses.delete, "Delete a model response.", response.Deleted
    ),
    Operation(
        "POST /v1/responses/{response_id}/cancel",
        responses.cancel,
        "Cancel a response.",
        response.Response,
        refuses=(InvalidRequest, NotFound),
    ),
    Operation(
        "GET /v1/responses/{response_id}/input_items",
        responses.input_items,
        "List input items.",
        pages.ItemPage,
        parameters=(*PAGE, INCLUDE),
        operation_id="response_lists.input_items",
    ),
    Operation(
        "POST /v1/chat/completions",
        completions.create_chat,
        "Create chat completion; with `stream`, in chunks as they come.",
        ChatCompletion,
        takes=ChatRequest,
        streams=(Chunk, ErrorBody),
        parameters=(_IDEMPOTENCY_KEY,),
        refuses=_RUN_ERRORS,
        operation_id="chat_completions.create",
    ),
    Operation(
        "GET /v1/chat/completions",
        completions.list_chats,
        "List chat completions.",
        pages.CompletionPage,
        parameters=(*PAGE, Parameter("model", str, "Filter by model."), METADATA),
        operation_id="stored_chat_completions.completions",
    ),
    Operation(
        "GET /v1/chat/completions/{completion_id}",
        completions.retrieve_chat,
        "Get chat completion.",
        StoredCompletion,
        operation_id="stored_chat_completions.retrieve",
    ),
    Operation(
        "POST /v1/chat/completions/{completion_id}",
        completions.update_chat,
        "Update chat completion: replace its metadata.",
        StoredCompletion,
        takes=UpdateCompletion,
        operation_id="stored_chat_completions.update",
    ),
    Operation(
        "DELETE /v1/chat/completions/{completion_id}",
        completions.delete_chat,
        "Delete chat completion.",
        DeletedCompletion,
        operation_id="stored_chat_completions.delete",
    ),
    Operation(
        "GET /v1/chat/completions/{completion_id}/messages",
        completions.list_messages,
        "Get chat messages.",
        pages.MessagePage,
        parameters=PAGE,
        operation_id="stored_chat_completions.messages",
    ),
    Operation(
        "POST /v1/completions",
        completions.create_text,
        "Create completion of texts or token ids; with `stream`, in chunks as they come.",
        TextCompletion,
        takes=TextRequest,
        streams=(TextCompletion, ErrorBody),
        parameters=(_IDEMPOTENCY_KEY,),
        refuses=_RUN_ERRORS,
        operation_id="completions.create",
    ),
    Operation(
        "POST /tokenize",
        models_and_tokenizer.tokenize,
        "Tokenize a text or a chat's prompt.",
        Tokenized,
        takes=TokenizeRequest,
        refuses=(NotFound,),
        operation_id="tokenize.tokenize",
    ),
    Operation(
        "POST /detokenize",
        models_and_tokenizer.detokenize,
        "Detokenize token ids.",
        Detokenized,
        takes=DetokenizeRequest,
        refuses=(NotFound,),
        operation_id="tokenize.detokenize",
    ),
    Operation(
        "GET /v1/conversations",
        conversations.list_stored,
        "List conversations, by age; an extension.",
        pages.ConversationPage,
        parameters=PAGE,
        operation_id="conversation_lists.conversations",
    ),
    Operation(
        "POST /v1/conversations",
        conversations.create,
        "Create a conversation.",
        conversation.Conversation,
        takes=conversation.CreateConversation,
        needs_body=False,
        refuses=(NotFound,),
    ),
    Operation(
        "GET /v1/conversations/{conversation_id}",
        conversations.retrieve,
        "Retrieve a conversation.",
        conversation.Conversation,
    ),
    Operation(
        "POST /v1/conversations/{conversation_id}",
        conversations.update,
        "Update a conversation: replace its metadata.",
        conversation.Conversation,
        takes=conversation.UpdateConversation,
    ),
    Operation(
        "DELETE /v1/conversations/{conversation_id}",
        conversations.delete,
        "Delete a conversation; its responses stay.",
        conversation.DeletedConversation,
        refuses=(ConversationLocked,),
    ),
    Operation(
        "POST /v1/conversations/{conversation_id}/items",
        conversations.create_items,
        "Create items.",
        pages.ItemPage,
        takes=conversation.CreateItems,
    ),
    Operation(
        "GET /v1/conversations/{conversation_id}/items",
        conversations.list_items,
        "List items.",
        pages.ItemPage,
        parameters=(*PAGE, INCLUDE),
    ),
    Operation(
        "GET /v1/conversations/{conversation_id}/items/{item_id}",
        conversations.retrieve_item,
        "Retrieve an item.",
        Item,
    ),
    Operation(
        "DELETE /v1/conversations/{conversation_id}/items/{item_id}",
        conversations.delete_item,
        "Delete an item.",
        conversation.Conversation,
        refuses=(ConversationLocked,),
    ),
    Operation(
        "GET /v1/models",
        models_and_tokenizer.list_models,
        "List models.",
        response.ModelList,
        operation_id="models.list_models",
    ),
    Operation(
        "GET /v1/models/{model:path}",
        models_and_tokenizer.retrieve,
        "Retrieve model.",
        response.Model,
        operation_id="models.retrieve",
    ),
    *ADMIN_ROUTES,
    *WEBHOOK_ROUTES,
    Operation(
        "GET /metrics",
        health.scrape,
        "Get this process's metrics in Prometheus' format.",
        str,
        operation_id="metrics.scrape",
        media_type="text/plain",
        scope="metrics",
    ),
]
"""Every one of them needs a key once a key exists."""


def describe(_services: Services, request: Request, _body: bytes) -> HttpResponse:
    """GET /openapi.json"""
    return json_response(request, msgspec.Raw(_document()))


def _readiness(route: str, operation_id: str) -> Operation[PublicHandler]:
    return Operation(
        route,
        health.ready,
        "Check whether requests can be served.",
        Health,
        otherwise={503: Health},
        operation_id=operation_id,
    )


PUBLIC_ROUTES: list[Operation[PublicHandler]] = [
    Operation("GET /health/live", health.live, "Check whether the process answers.", Health),
    _readiness("GET /health/ready", "health.ready.get_health_ready"),
    _readiness("GET /health", "health.ready.get_health"),
    _readiness("GET /ping", "health.ready.get_ping"),
    _readiness("POST /ping", "health.ready.post_ping"),
    Operation("GET /version", health.version, "Get this server's version.", Version),
    Operation("GET /openapi.json", describe, "Get this document.", dict[str, Any]),
]

HEALTH = (health.live, health.ready, health.version)
"""The handlers of the only routes that a worker has."""


@cache
def _document() -> bytes:
    return openapi.document(ROUTES, PUBLIC_ROUTES)
