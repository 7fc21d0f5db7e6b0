"""/health and /version: for load balancers and tools, open to everyone and telling nothing about anybody."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from server.http.json_response import as_json
from server.http.services import Services
from server.store.database import DatabaseError, clock
from server.version import VERSION


class Health(msgspec.Struct, frozen=True):
    status: str
    reason: str | msgspec.UnsetType = msgspec.UNSET


class Version(msgspec.Struct, frozen=True):
    version: str


def live(_services: Services, request: Request, _body: bytes) -> Response:
    """GET /health/live: the process answers."""
    return as_json(request, Health("live"))


def ready(services: Services, request: Request, _body: bytes) -> Response:
    """GET /health/ready, /health or /ping: new requests can be served; 503 and why, when they cannot."""
    reason = _why_not(services)
    if reason is None:
        return as_json(request, Health("ready"))
    return as_json(request, Health("unavailable", reason), 503)


def version(_services: Services, request: Request, _body: bytes) -> Response:
    """GET /version"""
    return as_json(request, Version(VERSION))


def _why_not(services: Services) -> str | None:
    if not services.admission.open:
        return "shutting down"
    if not services.served.engine.stats().alive:
        return "the engine is dead"
    for thread in services.threads:
        if (trouble := thread.trouble()) is not None:
            return trouble
    if services.disk.shortage() is not None:
        return "the database's disk is nearly full"
    if services.database.disk_is_full:
        return "the database's disk is full"
    try:
        services.database.retry(clock, seconds=0)
    except DatabaseError:
        return "the database does not answer"
    return services.recorder.trouble()
