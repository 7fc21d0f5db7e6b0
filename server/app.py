"""The map of the server: which function answers which address, and what is around all of them."""

from collections.abc import Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route

from server.api import health, models, responses
from server.auth import Caller
from server.errors import on_error
from server.services import Services
from server.stream.sse import Answer, Endpoint, lifespan

Handler = Callable[[Services, Caller, Request, bytes], Answer]
OpenHandler = Callable[[Services, Request, bytes], Answer]

ROUTES: list[tuple[str, str, Handler]] = [
    ("POST", "/v1/responses", responses.create),
    ("GET", "/v1/responses/{response_id}", responses.retrieve),
    ("DELETE", "/v1/responses/{response_id}", responses.delete),
    ("GET", "/v1/models", models.list_models),
    ("GET", "/v1/models/{model:path}", models.retrieve),
]
"""Every one of them needs a key once a key exists."""

OPEN_ROUTES: list[tuple[str, str, OpenHandler]] = [
    ("GET", "/health/live", health.live),
    ("GET", "/health/ready", health.ready),
]


def build(services: Services) -> Starlette:
    """The ASGI application."""

    def keyed(handler: Handler) -> Callable[[Request, bytes], Answer]:
        def handle(request: Request, body: bytes) -> Answer:
            return handler(services, services.gate.identify(request), request, body)

        return handle

    def open_to_all(handler: OpenHandler) -> Callable[[Request, bytes], Answer]:
        def handle(request: Request, body: bytes) -> Answer:
            return handler(services, request, body)

        return handle

    def route(method: str, path: str, handle: Callable[[Request, bytes], Answer]) -> Route:
        endpoint = Endpoint(
            handle, max_body=services.config.max_body_bytes, body_seconds=services.config.body_seconds
        )
        return Route(path, endpoint, methods=[method])

    return Starlette(
        routes=[
            *(route(method, path, keyed(handler)) for method, path, handler in ROUTES),
            *(route(method, path, open_to_all(handler)) for method, path, handler in OPEN_ROUTES),
        ],
        exception_handlers={404: on_error, 405: on_error},
        lifespan=lifespan(services.config.database_connections),
    )
