"""The id of a request, by which a caller finds it in the log: the answer's header `x-request-id`."""

from starlette.requests import Request

from server.errors import InvalidRequest
from server.protocol.ids import is_request_id


def apply_body_request_id(request: Request, given: str | None) -> None:
    """Gives the request the id in its body, if there is one. Raises InvalidRequest."""
    if given is None:
        return
    if not is_request_id(given):
        raise InvalidRequest("A request_id is of visible characters of ASCII.", param="request_id")
    request.state.request_id = given
