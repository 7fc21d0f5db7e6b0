"""The Starlette application: `build` with all routes, middleware, shared limits; `build_waiting` with health.

A worker's application has the routes of health alone and answers everything else with 503.
"""

from collections.abc import Callable, Sequence
from functools import partial

from msgspec import Raw, Struct
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp

from server.caller import Caller, Scope
from server.configuration.origins import AllowedOrigins, read_cors_origins
from server.errors import ApiError, WorkerReplica
from server.http.asgi.answers import Answer
from server.http.asgi.cors_and_slashes import CorsAndSlashes
from server.http.asgi.endpoint import (
    MAX_ANSWER_BYTES,
    AuthenticatedEndpoint,
    EndpointContext,
    PublicEndpoint,
    RefuseAll,
    address_share,
)
from server.http.asgi.request_body import drain_and_answer
from server.http.asgi.request_log import RequestLog, RequestObserver
from server.http.asgi.thread_pools import ThreadPools, ThreadShare, make_thread_pools
from server.http.handler_services import ApiCall, Handler, Services
from server.http.handlers import health, models_and_tokenizer
from server.http.handlers.health import Health, Version
from server.http.json_responses import json_response, on_error
from server.http.query_and_headers import require_json
from server.http.routes import PUBLIC_ROUTES, ROUTES, PublicHandler, describe
from server.http.websocket.connection import HandshakeWithoutUpgrade, SocketEndpoint
from server.http.websocket.session import SocketSession
from server.limits.shared_limit import SharedLimit
from server.logs.context import CURRENT
from server.protocol import input_images
from server.tracing.spans import Tracer
from server.version import VERSION

MAX_UNUSED_BODY_BYTES = 4096
"""Bytes that are read of the body of a request that needs none."""


MoreRoutes = Callable[[Services, EndpointContext[Caller]], Sequence[BaseRoute]]


def build(services: Services, connections: int, more_routes: MoreRoutes | None = None) -> Starlette:
    """The ASGI application for so many client connections; of a worker it serves health alone."""
    config, threads = services.config, make_thread_pools(services.config.database_connections)
    context = _endpoint_context(services, threads, connections)
    public = {route.handler: _public_endpoint(services, context, route.handler) for route in PUBLIC_ROUTES}
    routes: list[BaseRoute] = [
        Route(route.path, public[route.handler], methods=[route.method])
        for route in PUBLIC_ROUTES
        if config.serves_api or route.handler is not describe
    ]
    if not config.serves_api:
        refusal = RefuseAll(WorkerReplica)
        return _application(routes, read_cors_origins(None), services.events, otherwise=refusal)
    keyed = [(route.method, route.path, route.handler, route.required_scope) for route in ROUTES]
    if config.tokenizer_info == "on":
        keyed.append(("GET", "/tokenizer_info", models_and_tokenizer.tokenizer_info, "read"))

    def refuse(request: Request, error: Exception) -> ASGIApp:
        leads_on = config.console == "on" and _is_browser_at_root(request)
        answer = RedirectResponse("/console", 303) if leads_on else on_error(request, error)
        return partial(drain_and_answer, answer)  # of a request whose body was not read

    routes = [
        WebSocketRoute("/v1/responses", _websocket_endpoint(services, context, connections)),
        HandshakeWithoutUpgrade("/v1/responses"),
        *(_keyed_route(services, context, *route) for route in keyed),
        *routes,
        *(more_routes(services, context) if more_routes is not None else ()),
    ]
    origins = read_cors_origins(config.cors_origins)
    return _application(routes, origins, services.events, services.traces.tracer, refuse=refuse)


def _application(
    routes: Sequence[BaseRoute],
    origins: AllowedOrigins,
    observer: RequestObserver | None = None,
    tracer: Tracer | None = None,
    *,
    otherwise: ASGIApp | None = None,
    refuse: Callable[[Request, Exception], ASGIApp] | None = None,
) -> Starlette:
    """An application with the middleware of all; `otherwise` or `refuse` answers what is at no route."""
    app = Starlette(
        routes=routes,
        exception_handlers={404: refuse, 405: refuse} if refuse else None,  # type: ignore[dict-item]  # any ASGI app is called
        middleware=[Middleware(RequestLog, observer, tracer), Middleware(CorsAndSlashes, origins)],
    )
    app.router.redirect_slashes = False
    app.router.default = otherwise or app.router.default
    return app


def _is_browser_at_root(request: Request) -> bool:
    """Whether a person may have typed the server's bare address: clients of the API do not ask for HTML."""
    asks_for_html = "text/html" in request.headers.get("accept", "")
    return request.url.path == "/" and request.method in ("GET", "HEAD") and asks_for_html


def _endpoint_context(services: Services, threads: ThreadPools, connections: int) -> EndpointContext[Caller]:
    def authenticate(request: HTTPConnection) -> Caller:
        caller = services.authenticator.authenticate(request)
        if (context := CURRENT.get()) is not None:
            context.tenant, context.key_id = caller.tenant, caller.key_id
        return caller

    def expected_share(request: HTTPConnection) -> ThreadShare:
        tenant = services.authenticator.expected_tenant(request)
        return address_share(request) if tenant is None else ThreadShare(tenant, unlimited=True)

    body = services.config.max_body_bytes
    memory = max(services.config.body_memory, 2 * body)
    return EndpointContext(
        expected_share=expected_share,
        known_caller=services.authenticator.known_caller,
        authenticate=authenticate,
        share_of=lambda caller: ThreadShare(caller.tenant, unlimited=caller.key_id is None),
        threads=threads,
        requests=_half_per_tenant(services, "requests in progress", connections),
        bodies=_half_per_tenant(services, "bytes of request bodies", memory),
        answers=_half_per_tenant(services, "bytes of answers", MAX_ANSWER_BYTES),
        key_of=lambda caller: caller.key_id,
        connections=services.connections,
    )


def _half_per_tenant(services: Services, what: str, total: int) -> SharedLimit:
    """A limit of which one tenant may use half, so that the rest is left for the others."""
    limit = SharedLimit(what, total=total, per_tenant=max(1, total // 2))
    services.limits.append(limit)
    return limit


def _keyed_route(
    services: Services,
    context: EndpointContext[Caller],
    method: str,
    path: str,
    handler: Handler,
    scope: Scope,
) -> Route:
    def handle(request: Request, caller: Caller, body: bytes) -> Answer:
        call = ApiCall(services, caller, request, body)
        if method != "POST":
            return _answer(call, handler(call))
        require_json(request.headers, body)
        if reads_images:
            input_images.SOURCE.set(services.model.image_source(caller.tenant))
        try:
            return _answer(call, handler(call))
        finally:
            if caller.has_limits:
                request.state.answer_headers = services.admission.rates.headers(caller)

    reads_images = services.model.images is not None
    ends_others = method == "DELETE" or path.endswith(("/cancel", "/revoke"))
    threads = context.threads
    endpoint = AuthenticatedEndpoint(
        handle,
        context,
        threads.cancel if ends_others else threads.read if method == "GET" else threads.write,
        authorize=lambda caller: caller.require(scope),
        max_body=services.config.max_body_bytes if method == "POST" else MAX_UNUSED_BODY_BYTES,
        body_seconds=services.config.body_seconds,
        limited=not ends_others,
    )
    return Route(path, endpoint, methods=[method])


def _answer(call: ApiCall, result: Answer | Struct | Raw) -> Answer:
    return json_response(call.request, result) if isinstance(result, Struct | Raw) else result


def _public_endpoint(
    services: Services, context: EndpointContext[Caller], handler: PublicHandler
) -> PublicEndpoint:
    """The endpoint of a handler. `live` and `version` run on the event loop, so no queue delays them."""
    on_loop = handler in (health.live, health.version)
    threads = context.threads.health if handler is health.ready else context.threads.document
    return PublicEndpoint(lambda request: handler(services, request), None if on_loop else threads)


def _websocket_endpoint(
    services: Services, context: EndpointContext[Caller], connections: int
) -> SocketEndpoint[Caller]:
    memory = max(services.config.body_memory, 2)
    retained_bytes = _half_per_tenant(services, "bytes of WebSockets' unstored responses", memory)
    return SocketEndpoint(
        lambda websocket, caller: SocketSession(services, websocket, caller, retained_bytes),
        context,
        authorize=lambda caller: caller.require("write"),
        sockets=_half_per_tenant(services, "WebSockets", max(2, connections // 4)),
        seconds=services.config.websocket_seconds,
        closing=services.closing,
    )


def build_waiting(reason: Callable[[], ApiError]) -> Starlette:
    """Serves health, and for everything else the `reason` of the wait; asks no database."""

    def ready(request: Request) -> Response:
        error = reason()
        return json_response(request, Health("unavailable", str(error)), error.status)

    answers: dict[PublicHandler, Callable[[Request], Response]] = {
        health.live: lambda request: json_response(request, Health("live")),
        health.ready: ready,
        health.version: lambda request: json_response(request, Version(VERSION)),
    }
    routes = [
        Route(route.path, PublicEndpoint(answers[route.handler], None), methods=[route.method])
        for route in PUBLIC_ROUTES
        if route.handler in answers
    ]
    return _application(routes, read_cors_origins(None), otherwise=RefuseAll(reason))
