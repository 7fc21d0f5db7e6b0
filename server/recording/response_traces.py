"""`ResponseTraces`: spans of sampled responses, by the names of OpenTelemetry's conventions for GenAI.

The span of a response is a child of its request's, whose `traceparent` is stored with the response. Its own
id comes from the response's. So every replica that generates a part of the response makes children of the
same span, and the one that ends the response exports it: one connected trace, whichever replicas have died.
No span has content.
"""

from dataclasses import dataclass
from time import time_ns
from uuid import UUID

from server.generation.run import Run, RunFacts
from server.protocol.ids import response_id
from server.protocol.responses.response import Ending
from server.tracing.spans import Span, Tracer, Value


@dataclass(slots=True)
class _Active:
    """A sampled response in progress here. Times are nanoseconds of Unix time."""

    trace_parent: str
    """The `traceparent` of the response's span."""
    turn_began: int
    turn: int = 0
    first_token: int | None = None
    in_turn: bool = True


class ResponseTraces:
    """Any thread; `observe` is called by the recorder's. Without a tracer nothing is traced."""

    def __init__(self, tracer: Tracer | None = None) -> None:
        self.tracer = tracer
        self._active: dict[UUID, _Active] = {}

    @property
    def has_active(self) -> bool:
        """Whether a response in progress here is traced."""
        return bool(self._active)

    def begin(self, facts: RunFacts) -> None:
        """A run begins here, perhaps where another replica left it."""
        request = facts.trace_parent
        if self.tracer is None or request is None:
            return
        now = time_ns()
        parent = f"{request[:36]}{_span_id(facts.id):016x}{request[52:]}"
        self._active[facts.id] = _Active(parent, now)
        if facts.echo.background and facts.attempt <= 1:
            self._add("queue", parent, min(now, _began(facts)), now)

    def observe(self, run: Run, has_tokens: bool, is_last: bool, commit_seconds: float) -> None:
        """An update of a run is committed. With the last one the response's span ends."""
        active = self._active.get(run.facts.id)
        if active is None:
            return
        now = time_ns()
        if run.turn != active.turn:
            active.turn, active.turn_began, active.first_token, active.in_turn = run.turn, now, None, True
        if has_tokens and active.first_token is None:
            active.first_token = now
        if active.in_turn and (run.awaiting_tools or is_last):
            active.in_turn = False
            self._end_turn(active, now)
        if is_last:
            del self._active[run.facts.id]
            if run.ending is not None:
                self._add("commit", active.trace_parent, now - int(commit_seconds * 1e9), now)
                self._export(run.facts, run.ending, now)

    def begin_tool(self, response: UUID, server: str, name: str) -> Span | None:
        """The span of a tool call that the server makes; None if the response is not traced."""
        active = self._active.get(response)
        if active is None or self.tracer is None:
            return None
        return self.tracer.begin(
            f"execute_tool {name[:100]}",
            kind="client",
            parent=active.trace_parent,
            attributes={
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": name[:100],
                "holdfast.tool_server": server[:100],
            },
        )

    def trace_parent_of(self, engine_request_id: str) -> str | None:
        """The `traceparent` for a call that computes an engine request of a traced response."""
        if not self._active:
            return None
        active = self._active.get(UUID(hex=engine_request_id.partition(".")[0]))
        return None if active is None else active.trace_parent

    def close(self) -> None:
        """Exports what has ended."""
        if self.tracer is not None:
            self.tracer.close()

    def _end_turn(self, active: _Active, now: int) -> None:
        first = active.first_token or now
        self._add("prefill", active.trace_parent, active.turn_began, first, turn=active.turn)
        if active.first_token is not None:
            self._add("decode", active.trace_parent, first, now, turn=active.turn)

    def _add(self, name: str, parent: str, start: int, end: int, **attributes: Value) -> None:
        """Adds a span that is over already."""
        assert self.tracer is not None
        known = {f"holdfast.{key}": value for key, value in attributes.items()}
        span = self.tracer.begin(name, parent=parent, start_ns=start, attributes=known)
        if span is not None:
            span.end(end_ns=max(start, end))

    def _export(self, facts: RunFacts, ending: Ending, now: int) -> None:
        """Adds the response's own span, from its creation until now."""
        assert self.tracer is not None
        span = self.tracer.begin(
            f"chat {facts.echo.model}",
            parent=facts.trace_parent,
            start_ns=min(now, _began(facts)),
            span_id=_span_id(facts.id),
            attributes={
                "gen_ai.operation.name": "chat",
                "gen_ai.provider.name": "holdfast",
                "gen_ai.request.model": facts.echo.model,
                "gen_ai.response.id": response_id(facts.id),
                "gen_ai.usage.input_tokens": ending.input_tokens,
                "gen_ai.usage.output_tokens": ending.output_tokens,
                "gen_ai.usage.cache_read.input_tokens": ending.cached_tokens,
                "holdfast.reasoning_tokens": ending.reasoning_tokens,
                "holdfast.status": ending.status,
                "holdfast.queue_seconds": ending.queue_seconds,
                "holdfast.prefill_seconds": ending.prefill_seconds,
                "holdfast.tenant": facts.tenant,
                "holdfast.attempt": facts.attempt,
                "holdfast.background": facts.echo.background,
                "holdfast.request_id": facts.request_id,
            },
        )
        if span is not None:
            failed = ending.status == "failed"
            span.end(error=(ending.error_code or "error") if failed else None, end_ns=now)


def _span_id(response: UUID) -> int:
    """The span's id: random bits of the response's id, so that every replica has the same."""
    return response.int & 0xFFFF_FFFF_FFFF_FFFF


def _began(facts: RunFacts) -> int:
    return int(facts.created_at.timestamp() * 1e9)
