"""The end of a response whose run cannot be stored: as failed, with what is stored of it."""

from datetime import datetime

from server.generation.output_decoding import no_decoding
from server.generation.run import Run, RunFacts, RunLog
from server.recording.messages import (
    SERVER_ERROR,
    RunUpdate,
)
from server.store.database import Connection, clock
from server.store.log import events

NOT_STORED = "The server could not store the rest of this response."


def fail_from_log(connection: Connection, facts: RunFacts) -> RunUpdate:
    """The step that ends a response as failed behind its last stored event.

    Nothing of its run is used but the facts: readers know what is stored, and what came after may be what
    cannot be stored.
    """
    progress = events.read_progress(connection, facts.tenant, facts.id)
    emitted = events.read(connection, facts.tenant, facts.id, 0)
    found = RunLog(progress.token_ids, progress.next_seq, emitted, progress.first_token_at)
    return _fail(facts, found, clock(connection))


def fail_unstored(connection: Connection, step: RunUpdate) -> RunUpdate:
    """The same for a response that is not stored, behind the events before that step."""
    return _fail(step.run.facts, RunLog((), step.first_seq, (), None), clock(connection))


def _fail(facts: RunFacts, found: RunLog, at: datetime) -> RunUpdate:
    run = Run(facts, no_decoding())
    run.restore_output_only(found)
    step = RunUpdate(run)
    step.events += run.fail(SERVER_ERROR, NOT_STORED, at)
    return step
