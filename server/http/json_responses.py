"""HTTP responses with JSON bodies: msgspec structs, and exceptions as OpenAI's error object and status."""

import logging

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Match

from server import errors
from server.logs.context import CURRENT
from server.protocol.error_object import ErrorBody, ErrorDetail
from server.protocol.ids import new_request_id
from server.store.database_errors import DatabaseError, is_disk_full, is_statement_timeout

log = logging.getLogger("holdfast.errors")


def json_response(request: Request, value: msgspec.Struct | msgspec.Raw, status: int = 200) -> Response:
    headers = {"x-request-id": request.state.request_id}
    return Response(msgspec.json.encode(value), status, headers, "application/json")


def error_response(error: errors.ApiError, request_id: str) -> Response:
    body = ErrorBody(ErrorDetail(str(error), error.type, error.param, error.code))
    headers = {"x-request-id": request_id}
    headers["x-should-retry"] = "true" if error.retry else "false"
    if error.retry:
        headers["retry-after"] = str(error.retry_seconds)
    if isinstance(error, errors.NotAuthenticated):
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, errors.UnsupportedEncoding):
        headers["accept-encoding"] = "zstd, br, gzip, deflate"
    if isinstance(error, errors.UpgradeRequired):
        headers |= {"upgrade": "websocket", "connection": "upgrade"}
    return Response(msgspec.json.encode(body), error.status, headers, "application/json")


def to_api_error(error: Exception) -> errors.ApiError:
    """The error that a client gets for an exception; InternalError, without its text, for unexpected ones."""
    match error:
        case errors.ApiError():
            return error
        case DatabaseError() if is_disk_full(error):
            log.error("the database's disk is full")
            return errors.StorageFull()
        case DatabaseError() if is_statement_timeout(error):
            log.warning("a query took too long: %s", error)
            return errors.QueryTooSlow()
        case DatabaseError():
            log.warning("the database does not answer: %s", error)
            return errors.Overloaded("The database does not answer at the moment; try again.")
        case HTTPException(status_code=404):
            return errors.NotFound("There is nothing at this address; GET /openapi.json has all addresses.")
        case HTTPException(status_code=405):
            return errors.MethodNotAllowed("This address does not take that method.")
        case _:
            return errors.InternalError()


def log_refusal(api_error: errors.ApiError, request_id: str, error: Exception) -> None:
    """Logs what an operator should know of a request that is answered with this error.

    That is the cause of an InternalError, of which the client learns nothing; a limit that was reached; a
    key that was refused. Notes the error's code for the access line, and has the error forget the calls that
    raised it: as part of the request's state it is in a reference cycle, so their variables, which may be a
    whole history and its prompt, would stay until a collection of garbage, which does not count bytes.
    """
    request = CURRENT.get()
    if request is not None:
        request.error_code, request.error_status = api_error.code, api_error.status
    tenant = request.tenant if request is not None else None
    match api_error:
        case errors.InternalError():
            log.error("request %s failed", request_id, exc_info=error)
        case errors.NotAuthenticated():
            log.warning("a request without a valid API key was refused")
        case errors.ApiError(limit=str(limit)) | errors.TooManyRequests(code=str(limit)):
            log.warning("limit reached: %s", limit, extra={"limit": limit, "tenant": tenant})
        case _:
            pass
    api_error.__traceback__ = api_error.__cause__ = api_error.__context__ = None


def on_error(request: HTTPConnection, error: Exception) -> Response:
    """Starlette's handler for every exception that a route raises."""
    request_id = getattr(request.state, "request_id", None) or new_request_id()
    api_error = to_api_error(error)
    request.state.error = api_error
    log_refusal(api_error, request_id, error)
    answered = error_response(api_error, request_id)
    if isinstance(api_error, errors.MethodNotAllowed):
        routes = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
        answered.headers["allow"] = ", ".join(sorted({name for route in routes for name in route.methods}))
    return answered
