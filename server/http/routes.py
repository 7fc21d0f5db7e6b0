"""The routes: method, path, handler, and the contract for the OpenAPI document."""

from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from server.caller import Caller
from server.errors import (
    Conflict,
    ConversationLocked,
    InvalidRequest,
    NotFound,
    TooManyRequests,
    WrongHost,
    WrongOrigin,
)
from server.http import openapi, query_parameters
from server.http.asgi.answer import Answer
from server.http.handlers import (
    compact,
    completions,
    conversations,
    health,
    input_tokens,
    models,
    response_lists,
    responses,
    tokenize,
)
from server.http.handlers.health import Health, Version
from server.http.json_response import json_response
from server.http.openapi import Contract, Operation, Parameter
from server.http.services import Services
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
from server.protocol.conversations import (
    Conversation,
    CreateConversation,
    CreateItems,
    DeletedConversation,
    UpdateConversation,
)
from server.protocol.error_object import ErrorBody
from server.protocol.list_pages import CompletionPage, ItemPage, MessagePage, ResponsePage
from server.protocol.responses.events import StreamEvent
from server.protocol.responses.items import Item
from server.protocol.responses.request import CountInput, CreateResponse
from server.protocol.responses.response import (
    CompactedResponse,
    Deleted,
    InputTokens,
    Model,
    ModelList,
    Response,
    Status,
)

Handler = Callable[[Services, Caller, Request, bytes], Answer]
PublicHandler = Callable[[Services, Request, bytes], HttpResponse]

_EVENT_NAMES = Parameter(
    name=responses.EVENT_NAMES,
    type=Literal["openai", "open-responses"],
    says="Whose names the events of a stream have.",
    place="header",
)
_IDEMPOTENCY_KEY = Parameter(
    name="Idempotency-Key",
    type=Annotated[str, Meta(min_length=1, max_length=responses.MAX_KEY_LENGTH)],
    says="For a day the same key with the same body gives the same response.",
    place="header",
)
_RUN_ERRORS = (NotFound, Conflict, TooManyRequests)

ROUTES: list[tuple[str, str, Handler, Contract]] = [
    (
        "POST",
        "/v1/responses",
        responses.create,
        Contract(
            says="Begin a response; with `stream`, tell its events as they come.",
            takes=CreateResponse,
            gives=Response,
            streams=(StreamEvent,),
            parameters=(_IDEMPOTENCY_KEY, _EVENT_NAMES),
            refuses=_RUN_ERRORS,
        ),
    ),
    (
        "GET",
        "/v1/responses",
        response_lists.responses,
        Contract(
            says="A page of stored responses; an extension.",
            gives=ResponsePage,
            parameters=(
                *query_parameters.PAGE,
                Parameter(name="model", type=str, says="Only of this model."),
                Parameter(name="status", type=Status, says="Only of this status."),
                query_parameters.METADATA,
            ),
        ),
    ),
    (
        "POST",
        "/v1/responses/input_tokens",
        input_tokens.count,
        Contract(says="Count a prompt.", takes=CountInput, gives=InputTokens, refuses=(NotFound,)),
    ),
    (
        "POST",
        "/v1/responses/compact",
        compact.create,
        Contract(
            says="Make a long conversation short.",
            takes=CreateResponse,
            gives=CompactedResponse,
            refuses=_RUN_ERRORS,
        ),
    ),
    (
        "GET",
        "/v1/responses/{response_id}",
        responses.retrieve,
        Contract(
            says="A response as it stands; with `stream`, its events from any of them on.",
            gives=Response,
            streams=(StreamEvent,),
            parameters=(
                Parameter(name="stream", type=bool, says="Tell its events, and those to come."),
                Parameter(
                    name="starting_after",
                    type=Annotated[int, Meta(ge=0, lt=10**9)],
                    says="The sequence number after which the events begin.",
                ),
                Parameter(
                    name="Last-Event-ID",
                    type=Annotated[int, Meta(ge=0, lt=10**9)],
                    says="The same, as a browser's EventSource sends it; 204 once there is nothing after it.",
                    place="header",
                ),
                Parameter(name="include_obfuscation", type=bool, says="Changes nothing."),
                query_parameters.INCLUDE,
                _EVENT_NAMES,
            ),
            otherwise={204: None},
        ),
    ),
    ("DELETE", "/v1/responses/{response_id}", responses.delete, Contract(says="Delete it.", gives=Deleted)),
    (
        "POST",
        "/v1/responses/{response_id}/cancel",
        responses.cancel,
        Contract(says="End it early, wherever it runs.", gives=Response, refuses=(InvalidRequest, NotFound)),
    ),
    (
        "GET",
        "/v1/responses/{response_id}/input_items",
        response_lists.input_items,
        Contract(
            says="A page of what it was given.",
            gives=ItemPage,
            parameters=(*query_parameters.PAGE, query_parameters.INCLUDE),
        ),
    ),
    (
        "POST",
        "/v1/chat/completions",
        completions.create_chat,
        Contract(
            says="Complete a chat; with `stream`, tell it in chunks as they come.",
            takes=ChatRequest,
            gives=ChatCompletion,
            streams=(Chunk, ErrorBody),
            parameters=(_IDEMPOTENCY_KEY,),
            refuses=_RUN_ERRORS,
        ),
    ),
    (
        "GET",
        "/v1/chat/completions",
        completions.list_chats,
        Contract(
            says="A page of stored completions.",
            gives=CompletionPage,
            parameters=(
                *query_parameters.PAGE,
                Parameter(name="model", type=str, says="Only of this model."),
                query_parameters.METADATA,
            ),
        ),
    ),
    (
        "GET",
        "/v1/chat/completions/{completion_id}",
        completions.retrieve_chat,
        Contract(says="A stored completion.", gives=StoredCompletion),
    ),
    (
        "POST",
        "/v1/chat/completions/{completion_id}",
        completions.update_chat,
        Contract(says="Replace its metadata.", takes=UpdateCompletion, gives=StoredCompletion),
    ),
    (
        "DELETE",
        "/v1/chat/completions/{completion_id}",
        completions.delete_chat,
        Contract(says="Delete it.", gives=DeletedCompletion),
    ),
    (
        "GET",
        "/v1/chat/completions/{completion_id}/messages",
        completions.list_messages,
        Contract(
            says="A page of the messages that it was given.",
            gives=MessagePage,
            parameters=query_parameters.PAGE,
        ),
    ),
    (
        "POST",
        "/v1/completions",
        completions.create_text,
        Contract(
            says="Go on with texts, or with token ids; with `stream`, in chunks as they come.",
            takes=TextRequest,
            gives=TextCompletion,
            streams=(TextCompletion, ErrorBody),
            parameters=(_IDEMPOTENCY_KEY,),
            refuses=_RUN_ERRORS,
        ),
    ),
    (
        "POST",
        "/tokenize",
        tokenize.tokenize,
        Contract(
            says="The tokens of a text, or of a chat's prompt.",
            takes=TokenizeRequest,
            gives=Tokenized,
            refuses=(NotFound,),
        ),
    ),
    (
        "POST",
        "/detokenize",
        tokenize.detokenize,
        Contract(
            says="What tokens spell.",
            takes=DetokenizeRequest,
            gives=Detokenized,
            refuses=(NotFound,),
        ),
    ),
    (
        "POST",
        "/v1/conversations",
        conversations.create,
        Contract(
            says="Begin a conversation.",
            takes=CreateConversation,
            needs_body=False,
            gives=Conversation,
            refuses=(NotFound,),
        ),
    ),
    (
        "GET",
        "/v1/conversations/{conversation_id}",
        conversations.retrieve,
        Contract(says="A conversation.", gives=Conversation),
    ),
    (
        "POST",
        "/v1/conversations/{conversation_id}",
        conversations.update,
        Contract(says="Replace its metadata.", takes=UpdateConversation, gives=Conversation),
    ),
    (
        "DELETE",
        "/v1/conversations/{conversation_id}",
        conversations.delete,
        Contract(
            says="Delete it; its responses stay.", gives=DeletedConversation, refuses=(ConversationLocked,)
        ),
    ),
    (
        "POST",
        "/v1/conversations/{conversation_id}/items",
        conversations.create_items,
        Contract(says="Append items.", takes=CreateItems, gives=ItemPage),
    ),
    (
        "GET",
        "/v1/conversations/{conversation_id}/items",
        conversations.list_items,
        Contract(
            says="A page of its items.",
            gives=ItemPage,
            parameters=(*query_parameters.PAGE, query_parameters.INCLUDE),
        ),
    ),
    (
        "GET",
        "/v1/conversations/{conversation_id}/items/{item_id}",
        conversations.retrieve_item,
        Contract(says="One of its items.", gives=Item),
    ),
    (
        "DELETE",
        "/v1/conversations/{conversation_id}/items/{item_id}",
        conversations.delete_item,
        Contract(says="Take an item out.", gives=Conversation, refuses=(ConversationLocked,)),
    ),
    ("GET", "/v1/models", models.list_models, Contract(says="What is served here.", gives=ModelList)),
    ("GET", "/v1/models/{model:path}", models.retrieve, Contract(says="One model.", gives=Model)),
]
"""Every one of them needs a key once a key exists."""


def describe(_services: Services, request: Request, _body: bytes) -> HttpResponse:
    """GET /openapi.json"""
    return json_response(request, msgspec.Raw(_document()))


_READY = Contract(says="Whether requests can be served.", gives=Health, otherwise={503: Health})
PUBLIC_ROUTES: list[tuple[str, str, PublicHandler, Contract]] = [
    ("GET", "/health/live", health.live, Contract(says="The process answers.", gives=Health)),
    ("GET", "/health/ready", health.ready, _READY),
    ("GET", "/health", health.ready, _READY),
    ("GET", "/ping", health.ready, _READY),
    ("POST", "/ping", health.ready, _READY),
    ("GET", "/version", health.version, Contract(says="This server's version.", gives=Version)),
    (
        "GET",
        "/openapi.json",
        describe,
        Contract(says="This document.", gives=dict[str, Any], refuses=(WrongHost, WrongOrigin)),
    ),
]


_EARLIER_NAMES: dict[Any, str] = {
    completions.create_chat: "chat_completions.create",
    completions.create_text: "completions.create",
    completions.list_chats: "stored_chat_completions.completions",
    completions.retrieve_chat: "stored_chat_completions.retrieve",
    completions.update_chat: "stored_chat_completions.update",
    completions.delete_chat: "stored_chat_completions.delete",
    completions.list_messages: "stored_chat_completions.messages",
}
"""Operation ids that clients were generated with, where they are not the handlers' names."""


def _operation_id(method: str, path: str, handler: Handler | PublicHandler, contract: Contract) -> str:
    """The operation's, which is no other one's."""
    name = _EARLIER_NAMES.get(handler, f"{handler.__module__.rpartition('.')[2]}.{handler.__name__}")
    return name if contract is not _READY else f"{name}.{method.lower()}{path.replace('/', '_')}"


@cache
def _document() -> bytes:
    """Made when it is first asked for."""
    return openapi.document(
        [
            Operation(
                method=method,
                path=path,
                name=_operation_id(method, path, handler, contract),
                contract=contract,
                keyed=routes is ROUTES,
            )
            for routes in (ROUTES, PUBLIC_ROUTES)
            for method, path, handler, contract in routes
        ]
    )
