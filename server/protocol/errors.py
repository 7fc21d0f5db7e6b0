"""OpenAI's error object, and the failure to decode a request."""

import msgspec


class ErrorDetail(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every answer that is not 2xx."""

    error: ErrorDetail


class ExtractionBusy(Exception):
    """What a part of the request would be read with is in use; the same request can be tried again."""

    def __init__(self, message: str, *, own: bool = False) -> None:
        """`own` says that it is the tenant's own requests that use it."""
        super().__init__(message)
        self.own = own


class DecodeFailure(Exception):
    """The client's bytes are not what was asked for. `param` is the path of the mistake."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code
