"""OpenAI's error object, and the failure to decode a request."""

import msgspec


class ErrorDetail(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every HTTP response that is not 2xx."""

    error: ErrorDetail


class ExtractionBusy(Exception):
    """All PDF extraction workers are busy; the client may retry the request."""

    def __init__(self, message: str, *, own: bool = False) -> None:
        """`own`: they are busy with this tenant's own requests."""
        super().__init__(message)
        self.own = own


class DecodeFailure(Exception):
    """A request that is invalid. `param` is the path of the mistake, `code` OpenAI's error code."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code
