"""The end of a response whose run cannot be stored: as failed, with what is stored of it."""

from datetime import datetime

from server.generation.output_decoding import nothing_to_read
from server.generation.run import Log, Run, RunFacts
from server.recording.run_registry import SERVER_ERROR, RunUpdate
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
    found = Log(progress.token_ids, progress.next_seq, emitted, progress.first_token_at)
    return _fail(facts, found, clock(connection))


def fail_unstored(connection: Connection, step: RunUpdate) -> RunUpdate:
    """The same for a response that is not stored, behind the events before that step."""
    return _fail(step.run.facts, Log((), step.first_seq, (), None), clock(connection))


def _fail(facts: RunFacts, found: Log, at: datetime) -> RunUpdate:
    run = Run(facts, nothing_to_read())
    run.resume_told(found)
    step = RunUpdate(run)
    step.events += run.fail(SERVER_ERROR, NOT_STORED, at)
    return step
