"""/v1/chat/completions/{completion_id}: completions that were stored, and what they were given."""

from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from server.caller import Caller
from server.completions import stored_chat
from server.errors import NotFound
from server.http import query_and_headers
from server.http.json_responses import json_response
from server.http.services import Services
from server.protocol import ids
from server.protocol.completions.chat import DeletedCompletion, UpdateCompletion
from server.protocol.decode import decode
from server.store.content.list_pages import Filters


def completions(services: Services, caller: Caller, request: Request, _body: bytes) -> HttpResponse:
    """GET /v1/chat/completions"""
    page = query_and_headers.page_request(request, "asc")
    filters = Filters(
        model=query_and_headers.text(request, "model"),
        metadata=query_and_headers.metadata(request),
        completions=True,
    )
    listed = stored_chat.list_completions(
        services.database, caller.tenant, filters, page.after, page.limit, newest_first=page.newest_first
    )
    return json_response(request, listed)


def retrieve(services: Services, caller: Caller, request: Request, _body: bytes) -> HttpResponse:
    """GET /v1/chat/completions/{completion_id}"""
    return json_response(request, stored_chat.find(services.database, caller.tenant, _completion_id(request)))


def update(services: Services, caller: Caller, request: Request, body: bytes) -> HttpResponse:
    """POST /v1/chat/completions/{completion_id}"""
    first = _completion_id(request)
    wanted = decode(body, UpdateCompletion)
    return json_response(
        request, stored_chat.update(services.database, caller.tenant, first, wanted.metadata)
    )


def delete(services: Services, caller: Caller, request: Request, _body: bytes) -> HttpResponse:
    """DELETE /v1/chat/completions/{completion_id}, a running one too"""
    first = _completion_id(request)
    with services.database.begin() as connection:
        running = stored_chat.delete(connection, caller.tenant, first)
    for response in running:
        services.request_stop(response)
    return json_response(request, DeletedCompletion(ids.completion_id(first)))


def messages(services: Services, caller: Caller, request: Request, _body: bytes) -> HttpResponse:
    """GET /v1/chat/completions/{completion_id}/messages"""
    page = query_and_headers.page_request(request, "asc")
    listed = stored_chat.list_messages(
        services.database,
        caller.tenant,
        _completion_id(request),
        page.after,
        page.limit,
        newest_first=page.newest_first,
    )
    return json_response(request, listed)


def _completion_id(request: Request) -> UUID:
    text = request.path_params["completion_id"]
    first = ids.parse_completion_id(text)
    if first is None:
        raise NotFound(f"Chat completion with id '{text[:100]}' not found.")
    return first
