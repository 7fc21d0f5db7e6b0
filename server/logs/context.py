"""Context of log lines: the current request, a response, this replica. Ids and counts, never content."""

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeAlias
from uuid import UUID

from server.protocol.ids import response_id


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a response came from; stored with it, so that whoever ends it knows."""

    request_id: str | None = None
    trace_parent: str | None = None
    """`traceparent` of the span of its request; None if it is not traced."""
    user_agent: str | None = None


@dataclass(slots=True, eq=False)
class RequestContext:
    """The HTTP request or WebSocket message that the current task or handler thread serves."""

    request_id: str
    route: str = ""
    """The route's template; empty until a route was found."""
    tenant: str | None = None
    key_id: str | None = None
    trace_parent: str | None = None
    user_agent: str | None = None
    """The header User-Agent, cut and without control characters."""
    responses: Sequence[UUID] = ()
    """The responses that it began, or found by its idempotency key."""
    error_code: str | None = None
    error_status: int | None = None
    """Code and status of the error that it was answered with."""

    def log_fields(self) -> dict[str, object]:
        """The fields of every log line of this request; what is not known is left out."""
        response = response_id(self.responses[0]) if self.responses else None
        fields = {"request_id": self.request_id, "response_id": response}
        fields |= {"tenant": self.tenant, "key_id": self.key_id}
        return {name: value for name, value in fields.items() if value is not None}


CURRENT: ContextVar[RequestContext | None] = ContextVar("holdfast_request", default=None)


def current_origin() -> Origin:
    """Return the origin of responses that this thread or task begins; empty outside a request."""
    request = CURRENT.get()
    if request is None:
        return Origin()
    return Origin(request.request_id, request.trace_parent, request.user_agent)


def note_responses(responses: Sequence[UUID]) -> None:
    """Has log lines of the current request name these responses."""
    if (request := CURRENT.get()) is not None:
        request.responses = responses


ResponseFields: TypeAlias = dict[str, Any]
"""`extra` of a log line about a response."""


def response_fields(
    response: UUID, tenant: str | None = None, key_id: str | None = None, request_id: str | None = None
) -> ResponseFields:
    """`extra` of a log line about a response; formatters leave out what is None."""
    whose = {"request_id": request_id, "tenant": tenant, "key_id": key_id}
    return {"response_id": response_id(response), **whose}
