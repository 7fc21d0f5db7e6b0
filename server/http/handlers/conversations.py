"""/v1/conversations: create, retrieve, update, delete, and their items."""

from uuid import UUID

import msgspec
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from server.caller import Caller
from server.delivery.stored_responses import bad_cursor
from server.http import query_and_headers
from server.http.json_responses import json_response
from server.http.services import Services
from server.protocol import ids
from server.protocol.conversations import (
    CreateConversation,
    CreateItems,
    DeletedConversation,
    UpdateConversation,
)
from server.protocol.decode import decode
from server.protocol.list_pages import make_page
from server.request_input import conversations
from server.request_input.stored_input import unknown_conversation


def create(services: Services, caller: Caller, request: Request, body: bytes) -> HttpResponse:
    """POST /v1/conversations"""
    params = decode(body, CreateConversation) if body else CreateConversation()
    services.admission.storage.check(caller)
    return json_response(
        request, conversations.create(services.database, caller.tenant, params, services.model.seal)
    )


def list_stored(services: Services, caller: Caller, request: Request, _body: bytes) -> HttpResponse:
    """GET /v1/conversations: an extension"""
    page = query_and_headers.page_request(request)
    after = ids.parse_conversation_id(page.after) if page.after else None
    if page.after and after is None:
        raise bad_cursor(page.after, "a conversation")
    listed = conversations.list_stored(
        services.database, caller.tenant, after, page.limit, newest_first=page.newest_first
    )
    return json_response(request, listed)


def retrieve(services: Services, caller: Caller, request: Request, _body: bytes) -> HttpResponse:
    """GET /v1/conversations/{conversation_id}"""
    return json_response(
        request, conversations.find(services.database, caller.tenant, _conversation_id(request))
    )


def update(services: Services, caller: Caller, request: Request, body: bytes) -> HttpResponse:
    """POST /v1/conversations/{conversation_id}"""
    conversation = _conversation_id(request)
    params = decode(body, UpdateConversation)
    changed = conversations.update(services.database, caller.tenant, conversation, params.metadata)
    return json_response(request, changed)


def delete(services: Services, caller: Caller, request: Request, _body: bytes) -> HttpResponse:
    """DELETE /v1/conversations/{conversation_id}"""
    conversation = _conversation_id(request)
    conversations.delete(services.database, caller, conversation)
    return json_response(request, DeletedConversation(ids.conversation_id(conversation)))


def create_items(services: Services, caller: Caller, request: Request, body: bytes) -> HttpResponse:
    """POST /v1/conversations/{conversation_id}/items"""
    conversation = _conversation_id(request)
    query_and_headers.include_values(request)  # which has none that changes this answer
    params = decode(body, CreateItems)
    services.admission.storage.check(caller)
    added = conversations.add_items(
        services.database, caller.tenant, conversation, params.items, services.model.seal
    )
    return json_response(request, make_page(added, len(added)))


def list_items(services: Services, caller: Caller, request: Request, _body: bytes) -> HttpResponse:
    """GET /v1/conversations/{conversation_id}/items; `include` changes nothing, URLs are given always"""
    query_and_headers.include_values(request)
    asked, conversation = query_and_headers.page_request(request), _conversation_id(request)
    listed = conversations.list_items(services.database, caller.tenant, conversation, asked)
    return json_response(request, listed)


def retrieve_item(services: Services, caller: Caller, request: Request, _body: bytes) -> HttpResponse:
    """GET /v1/conversations/{conversation_id}/items/{item_id}"""
    conversation, item = _conversation_id(request), _item_id(request)
    query_and_headers.include_values(request)
    encoded = conversations.find_item(services.database, caller.tenant, conversation, item)
    return json_response(request, msgspec.Raw(encoded))


def delete_item(services: Services, caller: Caller, request: Request, _body: bytes) -> HttpResponse:
    """DELETE /v1/conversations/{conversation_id}/items/{item_id}; the answer is the conversation"""
    conversation, item = _conversation_id(request), _item_id(request)
    left = conversations.delete_item(services.database, caller, conversation, item)
    return json_response(request, left)


def _conversation_id(request: Request) -> UUID:
    text = request.path_params["conversation_id"]
    conversation = ids.parse_conversation_id(text)
    if conversation is None:
        raise unknown_conversation(text)
    return conversation


def _item_id(request: Request) -> str:
    item: str = request.path_params["item_id"]
    if "\0" in item:
        raise conversations.unknown_item(item)
    return item
