"""The table of HTTP routes, ROUTES and PUBLIC_ROUTES, and their OpenAPI document at /openapi.json."""

from collections.abc import Callable
from functools import cache
from typing import Any

from msgspec import Raw
from starlette.requests import Request
from starlette.responses import Response

from server.http import openapi
from server.http.handler_services import Handler, Services
from server.http.handlers import (
    administration,
    administration_approvals,
    administration_reports,
    completions,
    conversations,
    health,
    models_and_tokenizer,
    responses,
    webhooks,
)
from server.http.handlers.health import Health, Version
from server.http.json_responses import json_response
from server.http.operation import Operation

PublicHandler = Callable[[Services, Request], Response]

ROUTES: list[Operation[Handler]] = [
    *responses.routes,
    *completions.routes,
    *models_and_tokenizer.tokenizer,
    *conversations.routes,
    *models_and_tokenizer.models,
    *administration.routes,
    *administration_approvals.routes,
    *administration_reports.routes,
    *webhooks.tenant_routes,
    *webhooks.admin_routes,
    *health.metrics,
]
"""Every one of them needs a key once a key exists."""


def describe(_services: Services, request: Request) -> Response:
    """GET /openapi.json"""
    return json_response(request, Raw(_document()))


def _public(route: str, handler: PublicHandler, says: str, gives: Any, name: str) -> Operation[PublicHandler]:
    otherwise = {503: Health} if handler is health.ready else {}
    return Operation(route, handler, says, gives, otherwise=otherwise, operation_id=name)


_READY = "Check whether requests can be served."
PUBLIC_ROUTES: list[Operation[PublicHandler]] = [
    _public("GET /health/live", health.live, "Check whether the process answers.", Health, "health.live"),
    _public("GET /health/ready", health.ready, _READY, Health, "health.ready.get_health_ready"),
    _public("GET /health", health.ready, _READY, Health, "health.ready.get_health"),
    _public("GET /ping", health.ready, _READY, Health, "health.ready.get_ping"),
    _public("POST /ping", health.ready, _READY, Health, "health.ready.post_ping"),
    _public("GET /version", health.version, "Get this server's version.", Version, "health.version"),
    _public("GET /openapi.json", describe, "Get this document.", dict[str, Any], "routes.describe"),
]


@cache
def _document() -> bytes:
    return openapi.document(ROUTES, PUBLIC_ROUTES)
