"""What a step of a run leaves in the database: events, and with the last of them everything else.

Within the recorder's transaction, which has passed the fence.
"""

from collections.abc import Sequence
from uuid import UUID

from server.crashpoints import crashpoint
from server.generation.run import Run
from server.input_resolution.history import stored_item
from server.protocol.responses.states import Ending
from server.recording.expiry import lifetime_after_end
from server.recording.run_registry import RunUpdate
from server.recording.unsynced_commits import chunks_of
from server.store.cluster import claims
from server.store.content import conversations, deletion, responses
from server.store.content.responses import Owner, ResponseKey
from server.store.database import Connection, commit_synchronously
from server.store.log import events
from server.store.log.events import NewLogRow


class Unwritable(Exception):
    """A step of this response is broken."""


def write(connection: Connection, replica: UUID, steps: Sequence[RunUpdate]) -> None:
    """Writes the steps. Ends and hand-overs are on disk when the commit returns.

    Raises Unwritable, OwnershipLost, DatabaseError, or what the contents of one of them lead to.
    """
    if broken := [step.run.facts.id for step in steps if step.broken]:
        raise Unwritable(broken[0])
    if any(step.over for step in steps):
        commit_synchronously(connection)
    if chunks := log_rows(steps):
        events.append(connection, chunks)
    for step in steps:
        if step.run.ending is not None:
            _write_end(connection, replica, step.run, step.run.ending)
    if handed_back := [step for step in steps if step.handed_back and step.run.ending is None]:
        for died in (False, True):
            places = [_place(step.run) for step in handed_back if step.died is died]
            claims.release(connection, replica, places, died=died)
        crashpoint("handback.written")
    if any(step.run.ending is not None for step in steps):
        crashpoint("end.written")


def log_rows(steps: Sequence[RunUpdate]) -> list[NewLogRow]:
    """What the steps add to the log."""
    return [chunk for step in steps if step.run.stored for chunk in chunks_of(step)]


def is_written(connection: Connection, replica: UUID, step: RunUpdate) -> bool | None:
    """Whether a commit of this step that was answered by an error had happened after all.

    None if that leaves no trace, because there was nothing to write. What another replica has written of the
    same response since it took it over is not taken for it.
    """
    run, facts = step.run, step.run.facts
    if run.ending is None and run.stored and step.events:
        first = step.events[0].sequence_number
        return events.is_logged(connection, facts.tenant, facts.id, first, facts.attempt)
    if run.ending is None and not step.handed_back:
        return None
    owner = responses.get_owner(connection, facts.tenant, facts.id) if run.stored else None
    if run.ending is None:
        return not is_owner(owner, replica, run)
    if owner is not None:
        return owner == Owner(replica, facts.attempt, ended=True)
    return responses.is_metered(connection, facts.tenant, facts.id)


def is_owner(owner: Owner | None, replica: UUID, run: Run) -> bool:
    """Whether a response that the row shows to be so owned is still the replica's to write."""
    return owner == Owner(replica, run.facts.attempt, ended=False)


def _place(run: Run) -> ResponseKey:
    return ResponseKey(run.facts.tenant, run.facts.id)


def _write_end(connection: Connection, replica: UUID, run: Run, ending: Ending) -> None:
    """The row comes first: locked by others, or another's, it is found so before there is work to undo."""
    facts = run.facts
    if run.stored:
        finished = responses.finish(
            connection,
            facts.tenant,
            facts.id,
            replica,
            facts.attempt,
            ending,
            lifetime_after_end(facts.echo),
        )
        responses.insert_items(
            connection,
            facts.tenant,
            facts.id,
            responses.OUTPUT,
            [stored_item(item) for item in run.output],
        )
        events.compact(connection, facts.tenant, facts.id)
        if finished.deleted:
            deletion.remove_if_unneeded(connection, facts.tenant, facts.id)
        elif finished.conversation_id is not None:
            conversations.append_response(connection, facts.tenant, finished.conversation_id, facts.id)
    responses.record_usage(
        connection,
        tenant=facts.tenant,
        response_id=facts.id,
        key_id=facts.key_id,
        model=facts.echo.model,
        stored=run.stored,
        started_at=facts.created_at,
        ending=ending,
    )
