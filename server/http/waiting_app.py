"""`build_waiting`: the application of a server that waits for its database: health, and 503 else."""

from collections.abc import Callable

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from server.configuration.origins import read_cors_origins
from server.errors import ApiError
from server.http.asgi.cors_and_slashes import CorsAndSlashes
from server.http.asgi.endpoint import PublicEndpoint, RefuseAll
from server.http.asgi.request_log import RequestLog
from server.http.handlers.health import Health, Version
from server.http.json_responses import json_response
from server.version import VERSION

READINESS = (("GET", "/health/ready"), ("GET", "/health"), ("GET", "/ping"), ("POST", "/ping"))


def build_waiting(reason: Callable[[], ApiError]) -> Starlette:
    """The ASGI application, which authenticates nobody and asks no database.

    `reason` returns what is waited for, as the answer to every request.
    """

    def live(request: Request) -> Response:
        return json_response(request, Health("live"))

    def ready(request: Request) -> Response:
        error = reason()
        return json_response(request, Health("unavailable", str(error)), error.status)

    def version(request: Request) -> Response:
        return json_response(request, Version(VERSION))

    endpoints = [("GET", "/health/live", live), ("GET", "/version", version)]
    endpoints += [(method, path, ready) for method, path in READINESS]
    app = Starlette(
        routes=[
            Route(path, PublicEndpoint(handler, None), methods=[method])
            for method, path, handler in endpoints
        ],
        middleware=[Middleware(RequestLog), Middleware(CorsAndSlashes, read_cors_origins(None))],
    )
    app.router.redirect_slashes = False
    app.router.default = RefuseAll(reason)
    return app
