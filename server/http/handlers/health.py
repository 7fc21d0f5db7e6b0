"""/health, /ping, /version and /metrics: liveness, and readiness with the reason why nothing is served."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from server.http.handler_services import ApiCall, Services
from server.http.json_responses import json_response
from server.http.metrics_listener import CONTENT_TYPE
from server.http.operation import RouteTable
from server.store.database import takes_writes
from server.store.database_errors import DatabaseError
from server.version import VERSION

metrics = RouteTable("metrics", "")


class Health(msgspec.Struct, frozen=True):
    status: str
    reason: str | msgspec.UnsetType = msgspec.UNSET


class Version(msgspec.Struct, frozen=True):
    version: str


def live(_services: Services, request: Request) -> Response:
    """GET /health/live: the process answers."""
    return json_response(request, Health("live"))


def ready(services: Services, request: Request) -> Response:
    """GET /health/ready, /health or /ping: new requests can be served; 503 and why, when they cannot."""
    reason = unready_reason(services)
    if reason is None:
        return json_response(request, Health("ready"))
    return json_response(request, Health("unavailable", reason), 503)


def version(_services: Services, request: Request) -> Response:
    return json_response(request, Version(VERSION))


def unready_reason(services: Services) -> str | None:
    """Why new requests cannot be served; None if they can. Asks the database whether it takes writes."""
    if services.stopping.is_set():
        return "shutting down"
    stats = services.model.engine.stats()
    if not stats.alive:
        return "no engine server answers" if stats.remote else "the engine is dead"
    for thread in services.threads:
        if (trouble := thread.trouble()) is not None:
            return trouble
    if services.disk.shortage() is not None:
        return "the database's disk is nearly full"
    if services.database.disk_is_full:
        return "the database's disk is full"
    try:
        if not services.database.retry(takes_writes, seconds=0):
            return "the database takes no writes: its sessions are read-only"
    except DatabaseError:
        return "the database does not answer"
    if (age := services.heartbeat.age) > services.config.lease_seconds:
        return f"this replica's heartbeat was last written {age:.0f} s ago"
    return services.recorder.trouble() or services.claimer.trouble()


@metrics(
    "GET /metrics",
    "Get this process's metrics in Prometheus' format.",
    str,
    media_type="text/plain",
    scope="metrics",
)
def scrape(call: ApiCall) -> Response:
    return Response(call.services.render_metrics(), headers={**call.id_header, "content-type": CONTENT_TYPE})
