"""`ResponseFacts`: what is known of a response from its acceptance to its end, and afterwards, unchanged."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from server.protocol.responses.request import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseFacts:
    """The facts that a response's run, row and entry in the ledger share. One field is one column."""

    tenant: str
    id: UUID
    created_at: datetime
    model: str
    background: bool
    kind: Kind = "response"
    """The API whose request it is."""
    key_id: str | None = None
    end_user: str | None = None
    request_id: str | None = None
    """Id of the HTTP request that created the response."""
    trace_parent: str | None = None
    """`traceparent` of the span of that request; None if it is not traced."""
    user_agent: str | None = None

    def facts(self) -> dict[str, Any]:
        """The shared fields by name, without those that a subclass adds."""
        return {name: getattr(self, name) for name in FACTS}


FACTS = tuple(ResponseFacts.__dataclass_fields__)
