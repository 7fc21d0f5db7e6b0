"""Repairing what a dead replica left: its running responses are rebuilt from the log and ended as failed.

The run is fed the stored tokens, which brings it to the state it had; the recorder then writes its end the
way it writes every end.
"""

import logging
from collections.abc import Iterable, Sequence
from itertools import groupby
from uuid import UUID

import msgspec

from server.dialects.base import Dialect
from server.runs.recorder import SERVER_ERROR, Begin, Break, Recorder
from server.runs.run import Run, RunFacts
from server.store import events, responses
from server.store.database import Connection, Database
from server.store.responses import StoredResponse
from server.wire.events import Event, Kind
from server.wire.response import Echo

log = logging.getLogger("holdfast.recovery")

BATCH = 64
TOLD = "The server stopped while it was generating this response."


def end_orphans(database: Database, replica: UUID, dialect: Dialect, recorder: Recorder) -> int:
    """Takes over responses whose replica is dead and ends them; how many."""
    with database.begin() as connection:
        runs = [
            _rebuild(connection, orphan, dialect)
            for orphan in responses.claim_orphans(connection, replica, BATCH)
        ]
    for run in runs:
        log.warning("response %s was left by a dead replica and ends as failed", run.facts.id)
        recorder.deliver([Begin(run), Break(run.facts.id, SERVER_ERROR, TOLD)])
    return len(runs)


def _rebuild(connection: Connection, orphan: StoredResponse, dialect: Dialect) -> Run:
    tokens, next_seq = events.progress(connection, orphan.tenant, orphan.id)
    facts = RunFacts(
        tenant=orphan.tenant,
        id=orphan.id,
        key_id=None,
        echo=msgspec.json.decode(orphan.request, type=Echo),
        created_at=orphan.created_at,
        attempt=orphan.attempt,
        prompt_tokens=0,
    )
    told = events.read(connection, orphan.tenant, orphan.id, 0)
    for opens_reasoning in (False, True):
        run = Run(facts, dialect.parser(opens_reasoning=opens_reasoning))
        if _reads_as(run, tokens, next_seq, told):
            return run
    log.error("response %s reads otherwise than when it was written", orphan.id)
    run = Run(facts, dialect.parser(opens_reasoning=False))
    run.resume_told(told, next_seq)
    return run


def _reads_as(run: Run, tokens: Sequence[int], next_seq: int, told: Sequence[Event]) -> bool:
    """Whether the run, fed with these tokens, says what the log says."""
    try:
        return _said(run.resume(tokens, next_seq)) == _said(told)
    except Exception:
        log.exception("run %s cannot read its tokens again", run.facts.id)
        return False


def _said(made: Iterable[Event]) -> list[tuple[Kind, int, str]]:
    """What each item said: it shows whether the prompt had opened the model's reasoning."""
    deltas = [event for event in made if event.kind is not Kind.WHOLE]
    return [
        (*place, "".join(event.body for event in group))
        for place, group in groupby(deltas, key=lambda event: (event.kind, event.output_index))
    ]
