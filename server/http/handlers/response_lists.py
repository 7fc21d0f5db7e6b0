"""Lists of stored responses (an extension of OpenAI's API) and of a response's input items."""

from typing import get_args

from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from server.caller import Caller
from server.delivery.stored_responses import list_input_items, list_responses
from server.errors import InvalidRequest
from server.http import query_parameters
from server.http.handlers.responses import response_id, response_not_found
from server.http.json_response import json_response
from server.http.services import Services
from server.protocol.responses.response import Status
from server.store.content.response_pages import Filters


def responses(services: Services, caller: Caller, request: Request, _body: bytes) -> HttpResponse:
    """GET /v1/responses"""
    asked = query_parameters.page_request(request)
    status = query_parameters.text(request, "status")
    if status is not None and status not in get_args(Status):
        raise InvalidRequest(f"status must be one of {', '.join(get_args(Status))}.", param="status")
    filters = Filters(
        model=query_parameters.text(request, "model"),
        status=status,  # type: ignore[arg-type]  # looked up in its own values
        metadata=query_parameters.metadata(request),
    )
    page = list_responses(
        services.database, caller.tenant, filters, asked.after, asked.limit, newest_first=asked.newest_first
    )
    return json_response(request, page)


def input_items(services: Services, caller: Caller, request: Request, _body: bytes) -> HttpResponse:
    """GET /v1/responses/{response_id}/input_items; `include` changes nothing: items are given as they came"""
    asked = query_parameters.page_request(request)
    page = list_input_items(
        services.database,
        caller.tenant,
        response_id(request),
        asked.after,
        asked.limit,
        newest_first=asked.newest_first,
    )
    if page is None:
        raise response_not_found(request)
    return json_response(request, page)
