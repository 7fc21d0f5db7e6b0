"""/v1/conversations: create, retrieve, update, delete, and their items."""

from uuid import UUID

import msgspec
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from server.caller import Caller
from server.http import query_parameters
from server.http.json_response import as_json
from server.http.services import Services
from server.input_resolution import conversations
from server.input_resolution.resolve_input import unknown_conversation
from server.protocol import ids
from server.protocol.conversations import (
    CreateConversation,
    CreateItems,
    DeletedConversation,
    UpdateConversation,
)
from server.protocol.decode import decode
from server.protocol.list_pages import make_page


def create(services: Services, caller: Caller, request: Request, body: bytes) -> HttpResponse:
    """POST /v1/conversations"""
    wanted = decode(body, CreateConversation) if body else CreateConversation()
    services.admission.storage.check(caller)
    return as_json(
        request, conversations.create(services.database, caller.tenant, wanted, services.served.seal)
    )


def retrieve(services: Services, caller: Caller, request: Request, _body: bytes) -> HttpResponse:
    """GET /v1/conversations/{conversation_id}"""
    return as_json(request, conversations.find(services.database, caller.tenant, _named(request)))


def update(services: Services, caller: Caller, request: Request, body: bytes) -> HttpResponse:
    """POST /v1/conversations/{conversation_id}"""
    conversation = _named(request)
    wanted = decode(body, UpdateConversation)
    changed = conversations.update(services.database, caller.tenant, conversation, wanted.metadata)
    return as_json(request, changed)


def delete(services: Services, caller: Caller, request: Request, _body: bytes) -> HttpResponse:
    """DELETE /v1/conversations/{conversation_id}"""
    conversation = _named(request)
    conversations.delete(services.database, caller.tenant, conversation)
    return as_json(request, DeletedConversation(ids.conversation_id(conversation)))


def create_items(services: Services, caller: Caller, request: Request, body: bytes) -> HttpResponse:
    """POST /v1/conversations/{conversation_id}/items"""
    conversation = _named(request)
    wanted = decode(body, CreateItems)
    services.admission.storage.check(caller)
    added = conversations.add_items(
        services.database, caller.tenant, conversation, wanted.items, services.served.seal
    )
    return as_json(request, make_page(added, len(added)))


def list_items(services: Services, caller: Caller, request: Request, _body: bytes) -> HttpResponse:
    """GET /v1/conversations/{conversation_id}/items; `include` changes nothing, everything is given"""
    asked = query_parameters.page_asked(request)
    listed = conversations.list_items(
        services.database,
        caller.tenant,
        _named(request),
        asked.after,
        asked.limit,
        newest_first=asked.newest_first,
    )
    return as_json(request, listed)


def retrieve_item(services: Services, caller: Caller, request: Request, _body: bytes) -> HttpResponse:
    """GET /v1/conversations/{conversation_id}/items/{item_id}"""
    conversation, item = _named(request), _item_named(request)
    found = conversations.find_item(services.database, caller.tenant, conversation, item)
    return as_json(request, msgspec.Raw(found))


def delete_item(services: Services, caller: Caller, request: Request, _body: bytes) -> HttpResponse:
    """DELETE /v1/conversations/{conversation_id}/items/{item_id}; the answer is the conversation"""
    conversation, item = _named(request), _item_named(request)
    left = conversations.delete_item(services.database, caller.tenant, conversation, item)
    return as_json(request, left)


def _named(request: Request) -> UUID:
    given = request.path_params["conversation_id"]
    conversation = ids.parse_conversation_id(given)
    if conversation is None:
        raise unknown_conversation(given)
    return conversation


def _item_named(request: Request) -> str:
    item: str = request.path_params["item_id"]
    if "\0" in item:
        raise conversations.unknown_item(item)
    return item
