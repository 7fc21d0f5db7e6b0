"""`RunFacts`: what a run is about, the same from its acceptance to its end; the events that begin it."""

from dataclasses import dataclass

from server.logs.context import ResponseFields, response_fields
from server.protocol.responses.built_response import build_response
from server.protocol.responses.events import (
    Event,
    ResponseCreated,
    ResponseInProgress,
    ResponseQueued,
    whole_event,
)
from server.protocol.responses.facts import ResponseFacts
from server.protocol.responses.response import Echo, Status

FIRST_EVENTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts(ResponseFacts):
    """The facts of a response that do not change while it is generated in one attempt."""

    echo: Echo
    attempt: int
    prompt_tokens: int
    wants_output: bool = True
    """If False, only the prompt is prefilled; the single sampled token is discarded."""

    @property
    def stored(self) -> bool:
        """Whether the response has a row."""
        return self.echo.store or self.background

    @property
    def log_fields(self) -> ResponseFields:
        """`extra` of a log line about this response."""
        return response_fields(self.id, self.tenant, self.key_id, self.request_id)


def first_events(facts: RunFacts) -> list[Event]:
    """The events that are committed with the row: `response.created`, then `.queued` or `.in_progress`."""
    second = ResponseQueued if facts.background else ResponseInProgress
    status: Status = "queued" if facts.background else "in_progress"
    response = build_response(facts.id, facts.created_at, facts.echo, status, [])
    return [whole_event(ResponseCreated(0, response)), whole_event(second(1, response))]
