"""OpenAI's error object, and `DecodeFailure`, which a request that is invalid is refused with."""

import msgspec


class ErrorDetail(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every HTTP response that is not 2xx."""

    error: ErrorDetail


class DecodeFailure(Exception):
    """A request that is invalid. `param` is the path of the mistake, `code` OpenAI's error code."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


def missing_parameter(param: str) -> DecodeFailure:
    return DecodeFailure(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")


def unsupported_value(message: str, param: str | None) -> DecodeFailure:
    return DecodeFailure(message, param, "unsupported_value")


def invalid_value(message: str, param: str | None) -> DecodeFailure:
    return DecodeFailure(message, param, "invalid_value")
