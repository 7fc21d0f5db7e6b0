"""The log line of a response that has ended: its status, tokens and times."""

import logging

from server.generation.run import Run
from server.protocol.ids import response_id

log = logging.getLogger("holdfast.responses")


def log_end(run: Run) -> None:
    """Writes the line of a run whose end is committed. Times are from the response's creation."""
    ending, facts = run.ending, run.facts
    if ending is None or not log.isEnabledFor(logging.INFO):
        return
    begun = facts.created_at
    first = ending.first_token_at
    fields = {
        **facts.log_fields,
        "status": ending.status,
        "error_code": ending.error_code or ending.incomplete_reason,
        "model": facts.echo.model,
        "attempt": facts.attempt,
        "input_tokens": ending.input_tokens,
        "cached_tokens": ending.cached_tokens,
        "output_tokens": ending.output_tokens,
        "reasoning_tokens": ending.reasoning_tokens,
        "queue_ms": None if ending.queue_seconds is None else round(ending.queue_seconds * 1000, 1),
        "ttft_ms": None if first is None else round((first - begun).total_seconds() * 1000, 1),
        "ms": round((ending.finished_at - begun).total_seconds() * 1000, 1),
    }
    log.info("response %s %s", response_id(facts.id), ending.status, extra=fields)
