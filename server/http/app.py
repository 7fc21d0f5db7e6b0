"""The server as an ASGI application: the routes, and what is around all of them."""

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection, Request
from starlette.routing import Route, WebSocketRoute

from server.caller import Caller
from server.configuration.origins import read_cors_origins, require_json
from server.http.asgi.cors_and_slashes import CorsAndSlashes, Refusal
from server.http.asgi.endpoint import Admittance, Endpoint, OpenEndpoint
from server.http.asgi.event_stream import Answer
from server.http.asgi.request_body import Lingering
from server.http.asgi.thread_pools import ThreadClasses, ThreadShare, thread_classes
from server.http.asgi.websocket import SocketEndpoint
from server.http.error_responses import on_error
from server.http.handlers import health, tokenize
from server.http.handlers.websocket_session import SocketLimits, SocketSession
from server.http.routes import OPEN_ROUTES, ROUTES, Handler, OpenHandler
from server.http.services import Services
from server.limits.concurrency import SharedLimit

NO_BODY_BYTES = 4096
"""What is read of a body where none is needed, and dropped."""
_UNKNOWN = ThreadShare("")
"""Where keys that were not seen before wait for each other, and for nobody else."""


def build(services: Services, connections: int) -> Starlette:
    """The ASGI application, of which at most so many connections are in use at a time."""
    threads = thread_classes(services.config.database_connections)
    door = _door(services, threads, connections)
    keyed = [route[:3] for route in ROUTES]
    if services.config.tokenizer_info == "on":
        keyed.append(("GET", "/tokenizer_info", tokenize.info))
    opened = {handler: _open(services, door, handler) for _, _, handler, _ in OPEN_ROUTES}

    def refuse(request: Request, error: Exception) -> Refusal:
        return Refusal(on_error(request, error), door.lingering)

    app = Starlette(
        routes=[
            WebSocketRoute("/v1/responses", _sockets(services, door, connections)),
            *(_keyed(services, door, method, path, handler) for method, path, handler in keyed),
            *(Route(path, opened[handler], methods=[method]) for method, path, handler, _ in OPEN_ROUTES),
        ],
        exception_handlers={404: refuse, 405: refuse},  # type: ignore[dict-item]  # any ASGI app is called
        middleware=[Middleware(CorsAndSlashes, read_cors_origins(services.config.cors_origins))],
    )
    app.router.redirect_slashes = False
    return app


def _door(services: Services, threads: ThreadClasses, connections: int) -> Admittance[Caller]:
    def expect(request: HTTPConnection) -> ThreadShare:
        tenant = services.gate.expect(request)
        return _UNKNOWN if tenant is None else ThreadShare(tenant, whole=True)

    body = services.config.max_body_bytes
    memory = max(services.config.body_memory, 2 * body)
    return Admittance(
        expect=expect,
        identify=services.gate.identify,
        lane=_lane,
        threads=threads,
        requests=_halved("requests in progress", connections),
        bodies=_halved("bytes of request bodies", memory),
        lingering=Lingering(),
    )


def _lane(caller: Caller) -> ThreadShare:
    """While there is no key there is one tenant, for whom nothing is kept from."""
    return ThreadShare(caller.tenant, whole=caller.key_id is None)


def _halved(what: str, total: int) -> SharedLimit:
    """A tenant may have half, so that another one finds something."""
    return SharedLimit(what, total=total, per_tenant=max(1, total // 2))


def _keyed(services: Services, door: Admittance[Caller], method: str, path: str, handler: Handler) -> Route:
    def handle(request: Request, caller: Caller, body: bytes) -> Answer:
        if method == "POST":
            require_json(request.headers, body)
        return handler(services, caller, request, body)

    ends_others = method == "DELETE" or path.endswith("/cancel")
    threads = door.threads
    endpoint = Endpoint(
        handle,
        door,
        threads.cancel if ends_others else threads.read if method == "GET" else threads.write,
        max_body=services.config.max_body_bytes if method == "POST" else NO_BODY_BYTES,
        body_seconds=services.config.body_seconds,
        counted=not ends_others,
    )
    return Route(path, endpoint, methods=[method])


def _open(services: Services, door: Admittance[Caller], handler: OpenHandler) -> OpenEndpoint:
    """One for all addresses of a handler. `live` is answered on the loop, so that nothing can delay it."""
    on_loop = handler in (health.live, health.version)
    threads = door.threads.health if handler is health.ready else door.threads.document
    return OpenEndpoint(
        lambda request: handler(services, request, b""), None if on_loop else threads, door.lingering
    )


def _sockets(services: Services, door: Admittance[Caller], connections: int) -> SocketEndpoint[Caller]:
    limits = SocketLimits(
        kept=_halved("bytes of WebSockets' unstored responses", max(services.config.body_memory, 2)),
    )
    return SocketEndpoint(
        lambda websocket, caller: SocketSession(services, websocket, caller, limits),
        door,
        sockets=_halved("WebSockets", max(2, connections // 4)),
        seconds=services.config.websocket_seconds,
        send_seconds=services.config.send_seconds,
        closing=services.closing,
    )
