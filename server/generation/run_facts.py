"""`RunFacts`: what a run is about, the same from its acceptance to its end."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from server.logs.context import Origin, ResponseFields, response_fields
from server.protocol.responses.request import Kind
from server.protocol.responses.response import Echo


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """The facts of a response that do not change while it is generated."""

    tenant: str
    id: UUID
    key_id: str | None
    echo: Echo
    created_at: datetime
    attempt: int
    prompt_tokens: int
    wants_output: bool = True
    """If False, only the prompt is prefilled; the single sampled token is discarded."""
    origin: Origin = Origin()
    end_user: str | None = None
    kind: Kind = "response"

    @property
    def log_fields(self) -> ResponseFields:
        """`extra` of a log line about this response."""
        return response_fields(self.id, self.tenant, self.key_id, self.origin.request_id)
