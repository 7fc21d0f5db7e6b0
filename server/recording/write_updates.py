"""Writes the updates of runs: log rows, and with the last the end, items, usage, webhooks. Reads logs back.

What writes runs within a transaction of the recorder, after the fence.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

from server.crashpoints import crashpoint
from server.generation.run import Run
from server.generation.run_log import RunLog
from server.protocol.responses.response import Ending
from server.recording.recorder_messages import RunUpdate
from server.store import log_append, log_read
from server.store.administration import ledger
from server.store.administration.ledger import LedgerEntry
from server.store.cluster import claims
from server.store.content import conversations, deletion, images, responses, stored_items
from server.store.content.images import ImageUse
from server.store.content.item_rows import NewItem, stored_item
from server.store.content.responses import End, Owner, ResponseKey
from server.store.database import Connection, commit_synchronously
from server.store.log_append import NewLogRow
from server.store.webhooks import outbox

_UNSTORED = timedelta(minutes=10)
"""The time for which a background response with `store: false` is readable after its end; OpenAI's value."""


class Unwritable(Exception):
    """The update of this response has nothing that could be written."""


class EventsLost(Exception):
    """Events before this update are not stored, and this process does not have them any more."""


def must_reach_disk(updates: Sequence[RunUpdate]) -> bool:
    """Whether the commit of these updates waits for the disk, whatever the durability.

    A run ends or is released, or the record of its tool calls comes before the calls, which have an effect
    outside.
    """
    return any(update.is_last or update.run.next_step_is_tools for update in updates)


def write(connection: Connection, replica: UUID, updates: Sequence[RunUpdate]) -> None:
    """Writes the updates. Raises Unwritable, OwnershipLost, LogGap, DatabaseError, or as encoding."""
    if broken := [update.run.facts.id for update in updates if update.unwritable]:
        raise Unwritable(broken[0])
    if must_reach_disk(updates):
        commit_synchronously(connection)
    if chunks := log_chunks(updates):
        log_append.append(connection, chunks)
    ended = [update.run for update in updates if update.run.ending is not None]
    outputs = {run.facts.id: _output_rows(run) for run in ended if run.stored}
    images.insert_all(connection, [use for run in ended for use in _uses(run, outputs)])
    if ended:
        with_gaps = frozenset(update.run.facts.id for update in updates if update.has_gap)
        _write_ends(connection, replica, ended, outputs, with_gaps)
        outbox.enqueue(connection, [_key(run) for run in ended if run.stored])
    if released := [update for update in updates if update.released and update.run.ending is None]:
        for engine_died in (False, True):
            keys = [_key(update.run) for update in released if update.engine_died is engine_died]
            claims.release(connection, replica, keys, died=engine_died)
        crashpoint("release.written")
    if ended:
        crashpoint("end.written")


def read_log(connection: Connection, tenant: str, response: UUID) -> RunLog:
    """The log of a response that has not ended."""
    progress = log_read.read_progress(connection, tenant, response)
    logged = log_read.read(connection, tenant, response, 0)
    return RunLog(progress.token_chunks, progress.next_seq, logged, progress.first_token_at, progress.has_gap)


def log_rows(update: RunUpdate) -> Sequence[NewLogRow]:
    """The update's events as rows of the event log; none of a response that is not stored."""
    if update.log_rows is None:
        facts = update.run.facts
        at = (facts.tenant, facts.id, facts.attempt)
        update.log_rows = (
            log_append.encode_rows(*at, update.events, update.token_ids) if update.run.stored else ()
        )
    return update.log_rows


def log_chunks(updates: Sequence[RunUpdate]) -> list[NewLogRow]:
    return [row for update in updates for row in log_rows(update)]


def write_earlier_rows(connection: Connection, update: RunUpdate) -> None:
    """Appends those of the `earlier_rows` that are not stored any more, so that nothing is missing before the
    update's events.

    Raises EventsLost if something is missing before the first of these rows.
    """
    facts = update.run.facts
    stored = log_append.next_seq(connection, facts.tenant, facts.id)
    missing = [row for row in update.earlier_rows if row.first_seq >= stored]
    end = missing[-1].first_seq + missing[-1].n if missing else stored
    if end != update.first_seq or (missing and missing[0].first_seq != stored):
        raise EventsLost(facts.id)
    if missing:
        log_append.append(connection, missing)


def is_written(connection: Connection, replica: UUID, update: RunUpdate) -> bool | None:
    """Whether a commit of this update had happened although it was answered by an error.

    None if such a commit leaves no trace, because there was nothing to write. Writes of another replica that
    has taken the response over do not count.
    """
    run, facts = update.run, update.run.facts
    if run.ending is None and run.stored and update.events:
        first = update.events[0].sequence_number
        return log_append.is_logged(connection, facts.tenant, facts.id, first, facts.attempt)
    if run.ending is None and not update.released:
        return None
    owner = responses.get_owner(connection, facts.tenant, facts.id) if run.stored else None
    if run.ending is None:
        return not is_owner(owner, replica, run)
    if owner is not None:
        return owner == Owner(replica, facts.attempt, ended=True)
    return ledger.is_metered(connection, facts.tenant, facts.id)


def is_owner(owner: Owner | None, replica: UUID, run: Run) -> bool:
    """Whether a row's owner is this replica with this run's attempt, and the response has not ended."""
    return owner == Owner(replica, run.facts.attempt, ended=False)


def _key(run: Run) -> ResponseKey:
    return ResponseKey(run.facts.tenant, run.facts.id)


def _output_rows(run: Run) -> list[NewItem]:
    rows = [stored_item(item) for item in run.output]
    for index, seconds in run.call_seconds.items():
        rows[index] = replace(rows[index], seconds=seconds)
    return rows


def _uses(run: Run, outputs: Mapping[UUID, Sequence[NewItem]]) -> list[ImageUse]:
    facts = run.facts
    output = outputs.get(facts.id, ())
    return [ImageUse(facts.tenant, facts.id, item.id, image) for item in output for image in item.images]


def _write_ends(
    connection: Connection,
    replica: UUID,
    ended: Sequence[Run],
    outputs: Mapping[UUID, Sequence[NewItem]],
    with_gaps: Collection[UUID],
) -> None:
    """Updates the rows first, as one may be locked or lost. Raises LogGap but for those in `with_gaps`."""
    ends = [(run, run.ending) for run in ended if run.ending is not None]
    deleted: set[UUID] = set()
    if stored := [(run, ending) for run, ending in ends if run.stored]:
        finished = responses.finish_all(connection, replica, [_end(run, ending) for run, ending in stored])
        items = [(*key, outputs.get(key.id, ())) for key in finished]
        stored_items.insert_items_of(connection, stored_items.OUTPUT, items)
        ends_at = {run.facts.id: run.next_seq for run, _ in stored}
        whole = [(*key, ends_at[key.id]) for key in finished if key.id not in with_gaps]
        log_append.fold_short(connection, whole)
        for key, row in finished.items():
            if row.deleted:
                deleted.add(key.id)
                deletion.remove_if_unneeded(connection, *key)
            elif row.conversation_id is not None:
                conversations.append_response(connection, key.tenant, row.conversation_id, key.id)
    ledger.record_usage(connection, [(_usage(run, deleted), ending) for run, ending in ends])


def _end(run: Run, ending: Ending) -> End:
    facts = run.facts
    lifetime = _UNSTORED if facts.echo.background and not facts.echo.store else None
    return End(_key(run), facts.attempt, ending, lifetime)


def _usage(run: Run, deleted: Collection[UUID]) -> LedgerEntry:
    """The ledger's entry; without metadata where nothing of the content is to stay."""
    facts = run.facts
    has_tags = facts.echo.store and facts.id not in deleted
    return LedgerEntry(
        facts=facts,
        stored=run.stored,
        attempt=facts.attempt,
        metadata=facts.echo.metadata if has_tags else {},
    )
