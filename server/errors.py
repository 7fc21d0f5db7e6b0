"""The error tree. `server.http.json_responses` makes OpenAI's error objects of it.

    ApiError
    ├── InvalidRequest       400  the caller must change the request
    │   ├── UnknownModel     404
    │   └── ConversationLocked    try again after a while
    ├── NotAuthenticated     401  the caller must send a valid key
    ├── WrongOrigin          403  a page of another site asks, through somebody's browser
    ├── WrongHost            403  the Host header names none of ours
    ├── NotFound             404  absent, deleted, or another tenant's: all the same
    ├── MethodNotAllowed     405
    ├── BodyTooSlow          408
    ├── Conflict             409  another request is in the way
    ├── BodyTooLarge         413
    ├── UnsupportedMediaType 415  the body does not say that it is JSON
    ├── UnsupportedEncoding  415  the body is compressed in a way that is not read here
    ├── TooManyRequests      429  this caller has too many; try again after a while
    ├── StorageQuotaExceeded 429  this caller's tenant has stored all that it may
    ├── Overloaded           503  try again after a while
    ├── ToolServerDown       503  a tool that was asked for cannot be served; try again after a while
    ├── QueryTooSlow         504  the database took too long for this request; the same again would, too
    ├── StorageFull          503  the same, once there is room on the database's disk
    ├── ModelFailed          500  the model could not answer
    └── InternalError        500  our mistake; the cause is in the log
    ClientGone                    nobody is left to answer
    NotReady                      what a request needs is being fetched; then its handler is called again
    ConfigError                   a setting is wrong; told at the terminal

A message is for the caller: what is wrong and what would be right, nothing about our insides.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import ClassVar


class ApiError(Exception):
    """An error response: `status` and an error object with `type` and `code`."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    default_code: ClassVar[str | None] = None
    retry: ClassVar[bool] = False
    """Whether a repetition can succeed; sent as `x-should-retry`, which OpenAI's SDKs follow."""
    retry_seconds: ClassVar[int] = 1

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code or self.default_code


class InvalidRequest(ApiError):
    status = 400
    type = "invalid_request_error"


class UnknownModel(InvalidRequest):
    status = 404
    default_code = "model_not_found"

    def __init__(self, model: str, served: Sequence[str]) -> None:
        there = ", ".join(f"'{name}'" for name in served)
        super().__init__(
            f"The model '{model[:100]}' does not exist here; this server has {there}.", param="model"
        )


class ConversationLocked(InvalidRequest):
    """Has OpenAI's status and code, by which its agents SDK retries."""

    default_code = "conversation_locked"
    retry = True

    def __init__(self) -> None:
        super().__init__(
            "Another response in this conversation is not finished yet; try again in a few seconds.",
            param="conversation",
        )


class NotAuthenticated(ApiError):
    status = 401
    type = "invalid_request_error"
    default_code = "invalid_api_key"


class WrongOrigin(ApiError):
    status = 403
    type = "invalid_request_error"
    default_code = "wrong_origin"

    def __init__(self) -> None:
        super().__init__("Pages of other sites may use this server with an API key only.")


class WrongHost(ApiError):
    status = 403
    type = "invalid_request_error"
    default_code = "wrong_host"

    def __init__(self, host: str) -> None:
        super().__init__(
            f"This server does not answer as host {host[:100]!r}; its operator lists names other than this "
            "machine's own in HOLDFAST_ALLOWED_HOSTS."
        )


class NotFound(ApiError):
    status = 404
    type = "invalid_request_error"
    default_code = "not_found"


class MethodNotAllowed(ApiError):
    status = 405
    type = "invalid_request_error"
    default_code = "method_not_allowed"


class BodyTooSlow(ApiError):
    status = 408
    type = "invalid_request_error"
    default_code = "request_timeout"

    def __init__(self, seconds: float) -> None:
        super().__init__(f"The request body did not arrive within {seconds:g} seconds.")


class Conflict(ApiError):
    status = 409
    type = "invalid_request_error"
    default_code = "conflict"


class BodyTooLarge(ApiError):
    status = 413
    type = "invalid_request_error"
    default_code = "request_too_large"

    def __init__(self, limit: int) -> None:
        super().__init__(f"The request body is larger than {limit} bytes.")


class UnsupportedMediaType(ApiError):
    status = 415
    type = "invalid_request_error"
    default_code = "unsupported_media_type"

    def __init__(self, sent: str) -> None:
        what = f"not {sent[:100]}" if sent else "and its header is missing"
        super().__init__(f"A request body must be JSON, {what}: send `Content-Type: application/json`.")


class UnsupportedEncoding(ApiError):
    status = 415
    type = "invalid_request_error"
    default_code = "unsupported_media_type"

    def __init__(self, sent: str) -> None:
        super().__init__(
            f"A request body may be compressed with gzip or deflate, not {sent[:100]!r}: leave out "
            "Content-Encoding, or send one of these."
        )


class TooManyRequests(ApiError):
    status = 429
    type = "rate_limit_error"
    default_code = "rate_limit_exceeded"
    retry = True


class StorageQuotaExceeded(TooManyRequests):
    default_code = "storage_quota_exceeded"
    retry_seconds = 30

    def __init__(self, share: int) -> None:
        super().__init__(
            f"You have stored as much as you may, {share} bytes: delete responses or conversations, or send "
            "`store: false`."
        )


class Overloaded(ApiError):
    status = 503
    default_code = "overloaded"
    retry = True


class ToolServerDown(ApiError):
    """The tool server of a requested OpenAI tool is unavailable."""

    status = 503
    default_code = "tool_server_unavailable"
    retry = True

    def __init__(self, tool: str, label: str, why: str) -> None:
        super().__init__(
            f"The tool server '{label}', which serves {tool}, is not to be used now: {why}", param="tools"
        )


class StorageFull(ApiError):
    status = 503
    default_code = "storage_full"
    retry = True
    retry_seconds = 30

    def __init__(self) -> None:
        super().__init__("The server has no room left to store responses; try again later.")


class QueryTooSlow(ApiError):
    """A statement exceeded `statement_timeout`; unlike an outage, a repetition does not help."""

    status = 504
    default_code = "query_too_slow"

    def __init__(self) -> None:
        super().__init__("The database took too long for this request; ask for less, such as a shorter page.")


class ModelFailed(ApiError):
    default_code = "server_error"


class InternalError(ApiError):
    default_code = "internal_error"

    def __init__(self) -> None:
        super().__init__("The server made a mistake; it has been logged.")


class ClientGone(Exception):
    """The client disconnected before its request was complete."""


class NotReady(Exception):
    """A handler needs `pending` futures. It has changed nothing, and is called again when they are done."""

    def __init__(self, pending: Sequence["Future[None]"]) -> None:
        super().__init__("what the request needs is being fetched")
        self.pending = pending


class ConfigError(Exception):
    """A wrong setting; the message is a sentence for the operator."""
