"""The exceptions that become OpenAI's error objects, each with its HTTP status and code; a wrong setting.

`server.http.json_responses` makes the responses. A message is for the caller: what is wrong and what would
be right, nothing about our insides.
"""

import math
from collections.abc import Sequence
from concurrent.futures import Future
from typing import ClassVar, Final

_MAX_RETRY_SECONDS = 60
"""OpenAI's SDKs ignore a longer `Retry-After`."""
OVER_THE_LIMIT: Final = "Input tokens exceed the configured limit"
"""Clients recognise this error by these words, or by `maximum context length`."""


class ApiError(Exception):
    """An error response: `status` and an error object with `type` and `code`."""

    status: ClassVar[int] = 500
    default_code: ClassVar[str | None] = None
    retry: ClassVar[bool] = False
    """Whether a repetition can succeed; sent as `x-should-retry`, which OpenAI's SDKs follow."""
    retry_seconds: int = 1

    def __init_subclass__(
        cls, *, status: int | None = None, code: str | None = None, retry: bool | None = None
    ) -> None:
        """A class inherits from its base all that it does not set."""
        cls.status = status or cls.status
        cls.default_code = code or cls.default_code
        cls.retry = cls.retry if retry is None else retry

    def __init__(
        self, message: str, param: str | None = None, code: str | None = None, *, limit: str | None = None
    ) -> None:
        """`limit` is the name, in metrics and logs, of the limit that was reached."""
        super().__init__(message)
        self.kind: str | None = None
        """The error object's `type`, if not that of the status."""
        self.param = param
        self.code = code or self.default_code
        self.limit = limit

    @property
    def type(self) -> str:
        if self.kind is not None:
            return self.kind
        if self.status == 429:
            return "rate_limit_error"
        return "invalid_request_error" if self.status < 500 else "server_error"


class InvalidRequest(ApiError, status=400):
    """The caller must change the request."""


def bad_cursor(after: str, kind: str) -> InvalidRequest:
    """For the `after` of a list, which names nothing in it."""
    return InvalidRequest(f"after must be the id of {kind}, not '{after[:100]}'.", param="after")


class StreamForked(InvalidRequest, code="stream_forked"):
    """The database has lost events that a client has, and their numbers may be of others now."""

    def __init__(self, number: int, param: str | None = None) -> None:
        super().__init__(
            f"Event {number} of this response is not the one any more that you were sent: the database has "
            "lost that one, and the response went on from before it. Read the stream again from the start.",
            param=param,
        )


class EventNotStored(InvalidRequest, code="event_not_stored"):
    """A stream is to be resumed after an event that the response does not have."""

    def __init__(self, number: int, last: int, param: str) -> None:
        stored = f"the last one that is stored is event {last}" if last >= 0 else "none is stored"
        super().__init__(
            f"Event {number} of this response is not stored: {stored}. Resume after a stored event, or read "
            "the stream again from the start.",
            param=param,
        )


class UnknownModel(InvalidRequest, status=404, code="model_not_found"):
    def __init__(self, model: str, served: Sequence[str]) -> None:
        there = ", ".join(f"'{name}'" for name in served)
        super().__init__(
            f"The model '{model[:100]}' does not exist here; this server has {there}.", param="model"
        )


class ConversationLocked(InvalidRequest, code="conversation_locked", retry=True):
    """Has OpenAI's status and code, by which its agents SDK retries."""

    def __init__(self) -> None:
        super().__init__(
            "Another response in this conversation is not finished yet; try again in a few seconds.",
            param="conversation",
        )


class NotAuthenticated(ApiError, status=401, code="invalid_api_key"):
    """The caller must send a valid key."""


class WrongOrigin(ApiError, status=403, code="wrong_origin"):
    """A page of another site asks, through somebody's browser."""

    def __init__(self) -> None:
        super().__init__("Pages of other sites may use this server with an API key only.")


class WrongHost(ApiError, status=403, code="wrong_host"):
    """The Host header names none of ours."""

    def __init__(self, host: str) -> None:
        super().__init__(
            f"This server does not answer as host {host[:100]!r}; its operator lists names other than this "
            "machine's own in HOLDFAST_ALLOWED_HOSTS."
        )


class MissingScope(ApiError, status=403, code="insufficient_scope"):
    """The key may not do this."""

    def __init__(self, scope: str) -> None:
        super().__init__(
            f"You have insufficient permissions for this operation. Missing scopes: {scope}. This server's "
            "operator sets what an API key may do."
        )


class ModelNotAllowed(ApiError, status=403, code="model_not_found"):
    """The key may not use this model. Has OpenAI's status and code."""

    def __init__(self, model: str) -> None:
        super().__init__(f"This API key does not have access to model '{model[:100]}'.", param="model")


class ToolNotAllowed(ApiError, status=403, code="tool_not_allowed"):
    """The key may not use this tool, which the server would run."""

    def __init__(self, tool: str, param: str) -> None:
        super().__init__(f"This API key does not have access to the tool '{tool[:100]}'.", param=param)


class NotFound(ApiError, status=404, code="not_found"):
    """Absent, deleted, or another tenant's: all the same."""


class MethodNotAllowed(ApiError, status=405, code="method_not_allowed"):
    """The path exists with other methods."""


class BodyTooSlow(ApiError, status=408, code="request_timeout"):
    def __init__(self, seconds: float) -> None:
        super().__init__(f"The request body did not arrive within {seconds:g} seconds.")


class Conflict(ApiError, status=409, code="conflict"):
    """Another request is in the way."""


class BodyTooLarge(ApiError, status=413, code="request_too_large"):
    def __init__(self, limit: int) -> None:
        super().__init__(f"The request body is larger than {limit} bytes.")


class UnsupportedMediaType(ApiError, status=415, code="unsupported_media_type"):
    def __init__(self, sent: str) -> None:
        what = f"not {sent[:100]}" if sent else "and its header is missing"
        super().__init__(f"A request body must be JSON, {what}: send `Content-Type: application/json`.")


class UnsupportedEncoding(ApiError, status=415, code="unsupported_media_type"):
    def __init__(self, sent: str) -> None:
        super().__init__(
            f"A request body may be compressed with zstd, br, gzip or deflate, not {sent[:100]!r}: "
            "leave out Content-Encoding, or send one of these."
        )


class UpgradeRequired(ApiError, status=426, code="upgrade_required"):
    def __init__(self) -> None:
        super().__init__(
            "This is a WebSocket's handshake without `Connection: Upgrade` and `Upgrade: websocket`, as if a "
            "proxy had removed them: have it pass them on, or send requests over HTTP."
        )


class TooManyRequests(ApiError, status=429, code="rate_limit_exceeded", retry=True):
    """This caller has too many; it may try again after a while."""


class RateLimited(TooManyRequests):
    """A key or a tenant has used its requests or tokens of a minute. Has OpenAI's code and types."""

    def __init__(self, whose: str, kind: str, limit: int, used: int, requested: int, seconds: float) -> None:
        wait = max(1, math.ceil(seconds))
        self.retry_seconds = min(wait, _MAX_RETRY_SECONDS)
        super().__init__(
            f"Rate limit reached for {whose} on {kind} per min: Limit {limit}, Used {used}, Requested "
            f"{requested}. Please try again in {wait}s.",
            limit=f"{kind} per minute",
        )
        self.kind = kind


class RequestTooLarge(TooManyRequests, retry=False):
    """A request that asks for more than the limit of a minute."""

    def __init__(self, whose: str, kind: str, limit: int, requested: int) -> None:
        super().__init__(
            f"Request too large for {whose} on {kind} per min: Limit {limit}, Requested {requested}. It can "
            "never fit: send a shorter input, or a smaller max_output_tokens.",
            limit=f"{kind} per minute",
        )
        self.kind = kind


class BudgetExceeded(TooManyRequests, code="insufficient_quota", retry=False):
    """A key or a tenant has used its budget. Has OpenAI's code and type."""

    def __init__(self, message: str) -> None:
        super().__init__(message, limit="budget")
        self.kind = "insufficient_quota"


class StorageQuotaExceeded(TooManyRequests, code="storage_quota_exceeded"):
    """This caller's tenant has stored all that it may."""

    retry_seconds = 30

    def __init__(self, share: int) -> None:
        super().__init__(
            f"You have stored as much as you may, {share} bytes: delete responses or conversations, or send "
            "`store: false`.",
            limit="stored bytes",
        )


class Overloaded(ApiError, status=503, code="overloaded", retry=True):
    """Any caller may try again after a while."""


class WorkerReplica(ApiError, status=503, code="worker_replica", retry=True):
    """Not a 404, which would say of a stored response that it does not exist."""

    def __init__(self) -> None:
        super().__init__(
            "This replica is a worker, which serves nothing but /health; send requests to a replica with the "
            "role api or all."
        )


class SchemaBehind(ApiError, status=503, code="schema_behind", retry=True):
    """This server waits for the upgrade of the database; another replica may answer."""

    def __init__(self) -> None:
        super().__init__(
            "The database's schema is behind this release: an operator must run `holdfast db upgrade`; this "
            "server begins to serve by itself then."
        )


class DatabaseAwaited(ApiError, status=503, code="overloaded", retry=True):
    """This server waits for its database; another replica may answer."""

    def __init__(self) -> None:
        super().__init__("The database does not answer; this server begins to serve by itself when it does.")


class ToolServerDown(ApiError, status=503, code="tool_server_unavailable", retry=True):
    """The tool server of a requested OpenAI tool is unavailable."""

    def __init__(self, tool: str, label: str, why: str) -> None:
        super().__init__(
            f"The tool server '{label}', which serves {tool}, is not to be used now: {why}", param="tools"
        )


class StorageFull(ApiError, status=503, code="storage_full", retry=True):
    """The database's disk is full; the caller may try again once there is room."""

    retry_seconds = 30

    def __init__(self) -> None:
        super().__init__("The server has no room left to store responses; try again later.")


class QueryTooSlow(ApiError, status=504, code="query_too_slow"):
    """A statement exceeded `statement_timeout`; unlike an outage, a repetition does not help."""

    def __init__(self) -> None:
        super().__init__("The database took too long for this request; ask for less, such as a shorter page.")


class ModelFailed(ApiError, code="server_error"):
    """The model could not answer."""


class InternalError(ApiError, code="internal_error"):
    """Our mistake; the cause is in the log."""

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


class DatabaseAway(ConfigError):
    """The database takes no connections; it may later."""
