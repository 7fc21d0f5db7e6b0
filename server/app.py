"""The server as an ASGI application: the routes, and what is around all of them."""

from collections.abc import Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route, WebSocketRoute

from server.api.websocket import SocketSession
from server.errors import on_error
from server.origins import require_json
from server.routes import OPEN_ROUTES, ROUTES, Handler, OpenHandler
from server.services import Services
from server.stream.sse import Answer, Endpoint, Turns, lifespan
from server.stream.websocket import SocketEndpoint

WAIT_S = 10.0
"""How long a request waits for a thread before it is told to come back."""
HEALTH_THREADS = 2
"""Threads that only health checks use, so that a busy server is not taken for a dead one."""


def build(services: Services) -> Starlette:
    """The ASGI application."""

    def keyed(handler: Handler) -> Callable[[Request, bytes], Answer]:
        def handle(request: Request, body: bytes) -> Answer:
            caller = services.gate.identify(request)
            require_json(request.headers, body)
            return handler(services, caller, request, body)

        return handle

    def open_to_all(handler: OpenHandler) -> Callable[[Request, bytes], Answer]:
        def handle(request: Request, body: bytes) -> Answer:
            return handler(services, request, body)

        return handle

    threads = services.config.database_connections
    reads, writes, checks = (
        Turns(count, WAIT_S) for count in (threads, writing_threads(threads), HEALTH_THREADS)
    )

    def route(method: str, path: str, handle: Callable[[Request, bytes], Answer], turns: Turns) -> Route:
        endpoint = Endpoint(
            handle,
            max_body=services.config.max_body_bytes,
            body_seconds=services.config.body_seconds,
            turns=turns,
        )
        return Route(path, endpoint, methods=[method])

    sockets = SocketEndpoint(
        lambda websocket: SocketSession(services, websocket),
        turns=writes,
        seconds=services.config.websocket_seconds,
        send_seconds=services.config.send_seconds,
        closing=services.closing,
    )
    return Starlette(
        routes=[
            WebSocketRoute("/v1/responses", sockets),
            *(
                route(method, path, keyed(handler), reads if method == "GET" else writes)
                for method, path, handler, _ in ROUTES
            ),
            *(route(method, path, open_to_all(handler), checks) for method, path, handler, _ in OPEN_ROUTES),
        ],
        exception_handlers={404: on_error, 405: on_error},
        lifespan=lifespan(threads + HEALTH_THREADS),
    )


def writing_threads(threads: int) -> int:
    """How many of the handlers' threads may write.

    A quarter is for reads and streams, which wait for no lock, while all that write may be waiting for one.
    """
    return max(1, threads - max(1, threads // 4))
