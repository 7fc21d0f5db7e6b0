"""`pages`, which adds handlers; `ConsoleRequest`: what a handler gets, and how it answers."""

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Literal, NamedTuple
from urllib.parse import parse_qsl, urlencode
from uuid import UUID

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from server.administration.actor import Actor
from server.caller import Caller
from server.console.session_cookie import COOKIE, form_token
from server.console.sql_reader import SqlReader
from server.console.templates import render
from server.console.value_formats import csv_value
from server.errors import InvalidRequest, NotFound
from server.http.asgi.answers import Answer
from server.http.asgi.thread_pools import ThreadPools
from server.http.handler_services import Services
from server.protocol.ids import parse_response_id
from server.store.database import Database

MAX_FIELDS = 100
"""The most fields of a form or of a query string."""
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
"""Headers of all console responses but static files. With `no-referrer`, forms would come from `null`."""


ConsoleHandler = Callable[["ConsoleRequest"], Answer]
Need = Literal["nothing", "metadata", "admin"]


class ConsolePage(NamedTuple):
    """A route below /console."""

    method: str
    path: str
    handler: ConsoleHandler
    needs: Need


PAGES: list[ConsolePage] = []


def pages(route: str, needs: Need | None = None) -> Callable[[ConsoleHandler], ConsoleHandler]:
    """Adds the decorated handler to PAGES. By default a GET needs `metadata`, a POST `admin`."""
    method, _, path = route.partition(" ")

    def add(handler: ConsoleHandler) -> ConsoleHandler:
        default: Need = "admin" if method == "POST" else "metadata"
        PAGES.append(ConsolePage(method, path, handler, needs or default))
        return handler

    return add


@dataclass(frozen=True, slots=True)
class ConsoleRequest:
    """A request of somebody who is signed in, but for pages that need nothing."""

    services: Services
    caller: Caller
    request: Request
    pools: ThreadPools
    """The threads of the process's handlers, this one among them."""
    sql_reader: SqlReader
    form: Mapping[str, str] = field(default_factory=dict)
    """Fields of the form that a POST sent."""

    @property
    def database(self) -> Database:
        return self.services.database

    @property
    def is_admin(self) -> bool:
        """Whether contents may be shown, and anything may be changed."""
        return "admin" in self.caller.scopes

    @property
    def actor(self) -> Actor:
        """The caller as the audit trail names it."""
        return Actor(self.caller.actor, self.request.state.request_id)

    @property
    def is_fragment(self) -> bool:
        """Whether a script asks for a part of the page that it shows already."""
        return self.request.headers.get("hx-request") == "true"

    def argument(self, name: str) -> str:
        """A parameter of the address; empty if it is not there. Raises InvalidRequest for a NUL."""
        value = self.request.query_params.get(name, "").strip()
        if "\0" in value:
            raise InvalidRequest(f"{name} must not contain the NUL character.", param=name)
        return value

    def arguments(self, names: Iterable[str]) -> dict[str, str]:
        """Return the named parameters of the query string that are not empty."""
        return {name: value for name in names if (value := self.argument(name))}

    def page(self, template: str, status: int = 200, **values: object) -> Response:
        """The template as a page of the console, or as the fragment that a script asks for."""
        cookie = self.request.cookies.get(COOKIE, "")
        values |= {"console": self, "path": self.request.url.path}
        content = render(template, form_token=form_token(self.services.model.seal, cookie), **values)
        return html(self.request, content, status)

    def json(self, value: object) -> Response:
        return Response(msgspec.json.encode(value), 200, headers_of(self.request), "application/json")

    def csv(self, filename: str, rows: Iterable[Sequence[object]], numbers: Sequence[bool] = ()) -> Response:
        """The rows, names of columns first, as a file; `numbers` says which columns have numbers as texts."""
        text = io.StringIO()
        writer = csv.writer(text)
        for row in rows:
            cells = zip_longest(row, numbers, fillvalue=False)
            writer.writerow([value if number else csv_value(value) for value, number in cells])
        disposition = {"content-disposition": f'attachment; filename="{filename}"'}
        headers = headers_of(self.request) | disposition
        return Response(text.getvalue(), 200, headers, "text/csv; charset=utf-8")

    def redirect(self, path: str, **arguments: str) -> Response:
        """To another page, after a form."""
        return redirect(self.request, path, **arguments)

    def response_id(self) -> UUID:
        """The response that the address names. Raises NotFound."""
        response = parse_response_id(self.request.path_params["response_id"])
        if response is None:
            raise self.response_not_found()
        return response

    def response_not_found(self) -> NotFound:
        return NotFound(f"There is no response {self.request.path_params['response_id'][:100]}.")


def headers_of(request: Request) -> dict[str, str]:
    return {**HEADERS, "x-request-id": request.state.request_id}


def html(request: Request, content: str, status: int = 200) -> Response:
    return HTMLResponse(content, status, headers_of(request))


def redirect(request: Request, path: str, **arguments: str) -> Response:
    """See Other. A script gets the address in htmx's own header, as it would follow a redirect unseen."""
    address = f"{path}?{urlencode(arguments)}" if arguments else path
    headers = headers_of(request)
    if request.headers.get("hx-request") == "true":
        return Response(status_code=204, headers={**headers, "hx-redirect": address})
    return RedirectResponse(address, 303, headers)


def read_form(body: bytes) -> dict[str, str]:
    """The fields of an URL-encoded form. Raises InvalidRequest."""
    try:
        pairs = parse_qsl(
            body.decode(),
            keep_blank_values=True,
            max_num_fields=MAX_FIELDS,
            errors="strict",
            strict_parsing=bool(body),
        )
    except ValueError:
        raise InvalidRequest(f"A form is URL-encoded UTF-8 with at most {MAX_FIELDS} fields.") from None
    if any("\0" in name + value for name, value in pairs):
        raise InvalidRequest("A form must not contain the NUL character.")
    return dict(pairs)
