"""Repairing what a dead replica left: its running responses are rebuilt from the log and ended as failed.

The run is fed the stored tokens, which brings it to the state it had; the recorder then writes its end the
way it writes every end.
"""

import logging
from uuid import UUID

import msgspec

from server.dialects.base import Dialect
from server.runs.recorder import SERVER_ERROR, Begin, Break, Recorder
from server.runs.run import Run, RunFacts
from server.store import events, responses
from server.store.database import Connection, Database
from server.store.responses import StoredResponse
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
    run = Run(facts, dialect.parser(opens_reasoning=_began_in_reasoning(connection, orphan)))
    run.resume(tokens, next_seq)
    return run


def _began_in_reasoning(connection: Connection, orphan: StoredResponse) -> bool:
    """Whether the prompt had opened the model's reasoning, which its first item shows."""
    for event in events.read(connection, orphan.tenant, orphan.id, 2)[:1]:
        return '"type":"reasoning"' in event.body
    return False
