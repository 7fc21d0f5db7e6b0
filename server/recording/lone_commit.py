"""`commit_alone`: stores one update by itself, with all that must hold of its response looked up first.

For an update that could not be committed with the others, and for a response of which the database has lost
something. Within a transaction of the recorder's, after its fence.
"""

import logging
from typing import Literal
from uuid import UUID

from server.generation.output_decoding import no_decoding
from server.generation.run import Run, RunFacts
from server.generation.run_log import RunLog
from server.protocol.ids import response_id
from server.recording.recorder_messages import EVENTS_LOST, SERVER_ERROR, RunUpdate
from server.recording.write_updates import is_owner, is_written, read_log, write, write_earlier_rows
from server.store import log_append
from server.store.cluster import claims
from server.store.content import responses
from server.store.content.responses import Owner, ResponseKey
from server.store.database import Connection, commit_synchronously
from server.store.database import clock as database_clock

log = logging.getLogger("holdfast.recorder")

NOT_STORED = "The server could not store the rest of this response."
LOST = (
    "The database has lost events of this response that were sent before; it has the events up to this one."
)

Way = Literal["write", "fail", "release"]
"""`write`: the update is stored as it is. `fail`: the response ends as failed, with what is stored of it.
`release`: another replica goes on with it."""


def commit_alone(connection: Connection, replica: UUID, update: RunUpdate, way: Way) -> RunUpdate:
    """Stores an update, unless an earlier try did; returns it, or what readers get in its place.

    A response that is not this replica's any more is left alone and returned as released. Raises EventsLost,
    LogGap, Unwritable, DatabaseError, or any error of encoding the update.
    """
    run, facts = update.run, update.run.facts
    commit_synchronously(connection)
    if is_written(connection, replica, update):
        return update
    if not run.stored:
        return _commit_unstored(connection, replica, update, way)
    key = ResponseKey(facts.tenant, facts.id)
    owner = responses.get_owner(connection, *key)
    is_claim_lost = owner == Owner(None, facts.attempt - 1, ended=False)
    if is_claim_lost and claims.claim_again(connection, replica, key, facts.attempt):
        owner = Owner(replica, facts.attempt, ended=False)
    if not is_owner(owner, replica, run):
        log_append.delete_orphaned_log(connection, *key)
        name = response_id(facts.id)
        log.warning("%s is not this replica's any more; its run is dropped", name, extra=facts.log_fields)
        return RunUpdate(run, released=True, cut_short=True)
    match way:
        case "write":
            write_earlier_rows(connection, update)
            stored = update
        case "fail":
            stored = _failed(connection, facts, read_log(connection, *key), has_gap=update.has_gap)
        case "release":
            claims.release(connection, replica, [key], died=True)
            return RunUpdate(run, released=True, cut_short=True)
    write(connection, replica, [stored])
    return stored


def _commit_unstored(connection: Connection, replica: UUID, update: RunUpdate, way: Way) -> RunUpdate:
    """Writes the usage, the only thing that is stored; readers get the end even if that fails."""
    facts = update.run.facts
    if way != "write" and update.run.final is None:
        update = _failed(connection, facts, RunLog((), update.first_seq, (), None))
    if way == "release":
        log.error("%s is not metered", response_id(facts.id), extra=facts.log_fields)
    else:
        write(connection, replica, [update])
    return update


def _failed(connection: Connection, facts: RunFacts, stored: RunLog, *, has_gap: bool = False) -> RunUpdate:
    """The update that ends a response as failed after its last stored event, made of its facts alone."""
    run = Run(facts, no_decoding())
    run.restore_output_only(stored)
    update = RunUpdate(run, has_gap=has_gap, cut_short=True)
    code, message = (EVENTS_LOST, LOST) if has_gap else (SERVER_ERROR, NOT_STORED)
    update.events += run.fail(code, message, database_clock(connection))
    return update
