"""The console's routes, and the endpoints around their handlers: sessions, permissions, form tokens."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from pkgutil import walk_packages
from typing import Never

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from server.caller import Caller
from server.configuration.origins import SAME_SITE_VALUES, is_same_origin
from server.console import pages
from server.console.console_request import PAGES as PAGES
from server.console.console_request import ConsolePage, ConsoleRequest, Need, html, read_form, redirect
from server.console.session_cookie import COOKIE, PATH, is_form_token, with_key_of_cookie
from server.console.sql_reader import SqlReader
from server.console.templates import render, serve_static
from server.errors import InvalidRequest, MissingScope, NotAuthenticated, NotFound, WrongOrigin
from server.http.asgi.answers import Answer
from server.http.asgi.endpoint import AuthenticatedEndpoint, EndpointContext, PublicEndpoint, address_share
from server.http.asgi.thread_pools import ThreadPool, ThreadShare
from server.http.handler_services import Services
from server.http.json_responses import log_refusal, to_api_error
from server.limits.shared_limit import UNBOUNDED, SharedLimit
from server.protocol.ids import new_request_id
from server.store.console.time_limit import TimeOver

MAX_FORM_BYTES = 256 * 1024
MAX_UNUSED_BODY_BYTES = 4096
SIGN_IN_SECONDS = 5.0
"""Time for the sign-in form to arrive; its sender has no key yet."""


for _page in walk_packages(pages.__path__, f"{pages.__name__}."):
    import_module(_page.name)  # its handlers add themselves to PAGES


def console_routes(services: Services, context: EndpointContext[Caller]) -> Sequence[BaseRoute]:
    """The routes, which use the API's limits and threads; none if the console is off."""
    if services.config.console == "off":
        return ()
    reader = SqlReader(services.config)
    signed_in = replace(
        context,
        authenticate=lambda request: context.authenticate(with_key_of_cookie(services, request)),
        expected_share=lambda request: context.expected_share(with_key_of_cookie(services, request)),
        known_caller=lambda _request: None,
        on_error=on_error,
    )
    uncounted = SharedLimit("sign-ins", total=UNBOUNDED, per_tenant=UNBOUNDED)
    anonymous = replace(
        signed_in,
        authenticate=lambda request: Caller(address_share(request).tenant, None, scopes=frozenset()),
        authenticates=False,
        expected_share=address_share,
        share_of=lambda caller: ThreadShare(caller.tenant),
        requests=uncounted,  # their connections are what bounds them
        bodies=uncounted,
    )
    return [
        *(
            _route(services, anonymous if page.needs == "nothing" else signed_in, page, reader)
            for page in PAGES
        ),
        Route(f"{PATH}/static/{{name:path}}", PublicEndpoint(serve_static, None)),
        Route(
            f"{PATH}/{{rest:path}}",
            _endpoint(services, signed_in, context.threads.read, raise_not_found, "metadata"),
        ),
    ]


def _endpoint(
    services: Services,
    context: EndpointContext[Caller],
    threads: ThreadPool,
    handle: Callable[[Request, Caller, bytes], Answer],
    needs: Need,
    *,
    max_body: int = MAX_UNUSED_BODY_BYTES,
) -> AuthenticatedEndpoint[Caller]:
    """The endpoint of a handler; what needs nothing has little time for its body."""
    seconds = services.config.body_seconds
    return AuthenticatedEndpoint(
        handle,
        context,
        threads,
        authorize=lambda caller: _require(caller, needs),
        max_body=max_body,
        body_seconds=min(seconds, SIGN_IN_SECONDS) if needs == "nothing" else seconds,
    )


def _route(
    services: Services, context: EndpointContext[Caller], page: ConsolePage, reader: SqlReader
) -> Route:
    is_post, is_open = page.method == "POST", page.needs == "nothing"

    def handle(request: Request, caller: Caller, body: bytes) -> Answer:
        form = {}
        if is_post:
            _check_origin(request)
            form = read_form(body)
            if not is_open:
                _check_form(services, request, form)
        return page.handler(ConsoleRequest(services, caller, request, context.threads, reader, form))

    pools = context.threads
    threads = pools.auth if is_open else pools.write if is_post else pools.read
    most = MAX_FORM_BYTES if is_post and not is_open else MAX_UNUSED_BODY_BYTES
    endpoint = _endpoint(services, context, threads, handle, page.needs, max_body=most)
    return Route(PATH + page.path, endpoint, methods=[page.method])


def _require(caller: Caller, needed: Need) -> None:
    """Raises MissingScope. The scope admin opens everything."""
    if needed != "nothing" and "admin" not in caller.scopes and needed not in caller.scopes:
        raise MissingScope(needed)


def _check_form(services: Services, request: HTTPConnection, form: dict[str, str]) -> None:
    """Raises InvalidRequest for a form that no page of this session has sent."""
    cookie = request.cookies.get(COOKIE, "")
    if not is_form_token(services.model.seal, form.get("form_token", ""), cookie):
        raise InvalidRequest("This form is not of this session; reload the page and send it again.")


def _check_origin(request: HTTPConnection) -> None:
    """Raises WrongOrigin for what a page of another site has sent. Browsers name the origin of every POST."""
    headers: Headers = request.headers
    origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
    if site not in SAME_SITE_VALUES:
        raise WrongOrigin
    if origin is not None and not is_same_origin(origin, headers.get("host", "")):
        raise WrongOrigin


def on_error(connection: HTTPConnection, error: Exception) -> Response:
    """The answer to an exception of a page: a page with its sentence, or the way to the sign-in page."""
    request = Request(connection.scope)
    if getattr(request.state, "request_id", None) is None:
        request.state.request_id = new_request_id()
    api_error = to_api_error(InvalidRequest(str(error)) if isinstance(error, TimeOver) else error)
    request.state.error = api_error
    log_refusal(api_error, request.state.request_id, error)
    if isinstance(api_error, NotAuthenticated):
        next_page = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return redirect(
            request, f"{PATH}/sign-in", **({"next": next_page} if request.method == "GET" else {})
        )
    content = render(
        "error.html",
        status=api_error.status,
        message=str(api_error),
        may_sign_in=isinstance(api_error, MissingScope),
        request_id=request.state.request_id,
    )
    answer = html(request, content, api_error.status)
    if api_error.retry:
        answer.headers["retry-after"] = str(api_error.retry_seconds)
    return answer


def raise_not_found(_request: Request, _caller: Caller, _body: bytes) -> Never:
    """The handler of addresses below /console that are none."""
    raise NotFound("There is no such page.")
