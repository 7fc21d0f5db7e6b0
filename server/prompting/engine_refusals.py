"""The API error for each reason for which the engine refuses a request. Pure."""

from engine.request import RequestRefused
from server.errors import ApiError, InvalidRequest, Overloaded, TooManyRequests
from server.protocol.responses.request import CreateResponse


def refusal(refused: RequestRefused, request: CreateResponse) -> ApiError:
    """The error that the client gets."""
    match refused.reason:
        case "too_long":
            return InvalidRequest(str(refused), param="input", code="context_length_exceeded")
        case "overloaded":
            return Overloaded("The server has more requests than it can take; try again later.")
        case "share_full":
            return TooManyRequests("You have as many requests here as one may have; try again later.")
        case "closed":
            return Overloaded("The engine does not take requests at the moment.")
        case "bad_grammar":
            return _bad_grammar(str(refused), request)
        case "bad_beams":
            return InvalidRequest(str(refused), param="use_beam_search", code="unsupported_parameter")
        case "bad_stop":
            return InvalidRequest(str(refused), param="stop")
        case _:
            return InvalidRequest(str(refused))


def _bad_grammar(message: str, request: CreateResponse) -> InvalidRequest:
    if request.structured_outputs:
        return InvalidRequest(message, param="structured_outputs", code="invalid_value")
    if request.text and request.text.format and request.text.format.type == "json_schema":
        return InvalidRequest(message, param="text.format", code="invalid_json_schema")
    return InvalidRequest(message, param="tools", code="invalid_function_parameters")
