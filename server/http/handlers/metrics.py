"""GET /metrics: this process's series in Prometheus' text format."""

from starlette.requests import Request
from starlette.responses import Response

from server.caller import Caller
from server.http.metrics_listener import CONTENT_TYPE
from server.http.services import Services


def scrape(services: Services, _caller: Caller, request: Request, _body: bytes) -> Response:
    """GET /metrics"""
    headers = {"x-request-id": request.state.request_id, "content-type": CONTENT_TYPE}
    return Response(services.render_metrics(), headers=headers)
