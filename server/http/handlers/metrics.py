"""GET /metrics: this process's series in Prometheus' text format, for keys with the scope `metrics`."""

from starlette.requests import Request
from starlette.responses import Response

from server.caller import Caller
from server.errors import MissingScope
from server.http.services import Services
from server.metrics.exposition import CONTENT_TYPE
from server.store import stored_keys

SCOPE = "metrics"


def scrape(services: Services, caller: Caller, request: Request, _body: bytes) -> Response:
    """GET /metrics"""
    key_id = caller.key_id
    if key_id is not None and not services.database.autocommit(
        lambda connection: stored_keys.has_scope(connection, caller.tenant, key_id, SCOPE)
    ):
        raise MissingScope(SCOPE)
    headers = {"x-request-id": request.state.request_id, "content-type": CONTENT_TYPE}
    return Response(services.metrics.render(), headers=headers)
