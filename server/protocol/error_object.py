"""OpenAI's error object, and errors of requests that are invalid, by OpenAI's codes."""

import msgspec

from server.errors import InvalidRequest


class ErrorDetail(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every HTTP response that is not 2xx."""

    error: ErrorDetail


def missing_parameter(param: str) -> InvalidRequest:
    return InvalidRequest(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")


def unsupported_value(message: str, param: str | None) -> InvalidRequest:
    return InvalidRequest(message, param, "unsupported_value")


def invalid_value(message: str, param: str | None) -> InvalidRequest:
    return InvalidRequest(message, param, "invalid_value")


def unsupported_parameter(message: str, param: str | None) -> InvalidRequest:
    return InvalidRequest(message, param, "unsupported_parameter")
