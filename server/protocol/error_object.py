"""OpenAI's error object, and errors of requests that are invalid, by OpenAI's codes."""

from functools import partial

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


missing_value = partial(InvalidRequest, code="missing_required_parameter")
unsupported_value = partial(InvalidRequest, code="unsupported_value")
invalid_value = partial(InvalidRequest, code="invalid_value")
unsupported_parameter = partial(InvalidRequest, code="unsupported_parameter")


def missing_parameter(param: str) -> InvalidRequest:
    return missing_value(f"Missing required parameter: '{param}'.", param)
