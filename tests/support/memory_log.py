"""What the store's SQL of the event log means, over a database in memory.

Rows of the log are held against those before them: numbers without a gap, attempts that never go back,
nothing after the end.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from uuid import UUID

import msgspec

from server.protocol.responses.response import TERMINAL_STATUSES
from server.store import log_read
from server.store.commit_probe import Acknowledged, Probe
from server.store.database_errors import AlreadyThere
from server.store.log_append import NewLogRow
from server.store.log_read import LoggedEvent, LogProgress, Subscription, SubscriptionUpdate
from tests.support.memory import Memory, MemoryConnection
from tests.support.memory_store import fence


def append(at: Memory, chunks: Iterable[NewLogRow]) -> None:
    at.uses("log")
    for chunk in chunks:
        row = at.rows.get(chunk.response_id)
        before = at.orphans.setdefault(chunk.response_id, []) if row is None else [one for one, _ in row.log]
        if row is None or not row.folded:
            _refuse_twice(before, chunk)
        at.must(row is None or not row.folded, "an event after the end")
        end = before[-1].first_seq + before[-1].n if before else 0
        at.must(row is None or chunk.first_seq == end, f"event {chunk.first_seq} where {end} comes next")
        at.must(not before or chunk.attempt >= before[-1].attempt, "an event of an earlier attempt")
        if row is None:
            before.append(chunk)
            at.wrote(lambda before=before: before.pop())  # type: ignore[misc]
        else:
            row.log.append((chunk, at.now.timestamp()))
            at.wrote(lambda row=row: row.log.pop(), chunk)  # type: ignore[misc]


def _refuse_twice(before: Sequence[NewLogRow], chunk: NewLogRow) -> None:
    """The primary key."""
    if any(one.first_seq == chunk.first_seq for one in before):
        raise AlreadyThere("insert", None, ValueError("the row is there"))


def append_and_commit(
    at: MemoryConnection,
    replica: UUID,
    make: Callable[[datetime], Iterable[NewLogRow] | None],
    *,
    probe: Probe | None,
    synchronous: bool,
) -> bool:
    with at.begin(synchronous=synchronous):
        now, match = fence_with_probes(at.memory, replica, probe)
        rows = make(now) if match else None
        if rows is not None:
            append(at.memory, rows)
        return rows is not None


def fence_with_probes(at: Memory, replica: UUID, probe: Probe | None) -> tuple[datetime, bool]:
    return fence(at, replica), probe is None or _matches(at, probe)


def _matches(at: Memory, probe: Probe) -> bool:
    if probe.first_seq is None:
        at.uses("usage")
        return probe.response_id in at.metered
    at.uses("log")
    row = at.rows.get(probe.response_id)
    if row is None or row.folded:
        return False
    return any(chunk.first_seq == probe.first_seq for chunk, _ in row.log)


def lost(at: Memory, replica: UUID, acknowledged: Sequence[Acknowledged]) -> list[UUID]:
    return [state.response_id for state in acknowledged if _is_lost(at, replica, state)]


def _is_lost(at: Memory, replica: UUID, state: Acknowledged) -> bool:
    at.uses("responses")
    if not state.stored:
        return state.response_id not in at.metered
    row = at.rows.get(state.response_id)
    owned = row is not None and (row.stored.replica_id, row.stored.attempt, row.stored.status) == (
        replica,
        state.attempt,
        "in_progress",
    )
    if state.is_over or not owned:
        return owned is state.is_over
    return state.next_seq > next_seq(at, state.tenant, state.response_id)


def fold_short(at: Memory, ended: Iterable[tuple[str, UUID, int]]) -> None:
    for _, response_id, _ in ended:
        row = at.rows[response_id]
        at.uses("log")
        row.folded = True
        at.wrote(partial(setattr, row, "folded", False))


def read_log(
    at: Memory, tenant: str, response_id: UUID, first: int, limit: int | None = None
) -> list[LoggedEvent]:
    return list(log_read.FoldedStream(read_ended(at, tenant, response_id)).read(first))[:limit]


def read_ended(at: Memory, tenant: str, response_id: UUID) -> str:
    at.uses("log")
    row = at.rows.get(response_id)
    rows = [] if row is None or (row.deleted and row.folded) else row.log
    return msgspec.json.encode(
        [[*chunk[2:7], moment, msgspec.Raw(chunk.body), chunk.attempt] for chunk, moment in rows]
    ).decode()


def read_progress(at: Memory, tenant: str, response_id: UUID) -> LogProgress:
    at.uses("log")
    row = at.rows.get(response_id)
    if row is None or row.folded or not row.log:
        return LogProgress([], 0, None)
    given = [(chunk, moment) for chunk, moment in row.log if chunk.token_ids is not None]
    pieces = [(chunk.first_seq, memoryview(chunk.token_ids or b"").cast("i").tolist()) for chunk, _ in given]
    first = datetime.fromtimestamp(given[0][1], UTC) if given else None
    return LogProgress(pieces, row.log[-1][0].first_seq + row.log[-1][0].n, first)


def next_seq(at: Memory, tenant: str, response_id: UUID) -> int:
    return read_progress(at, tenant, response_id).next_seq


def is_logged(at: Memory, tenant: str, response_id: UUID, seq: int, attempt: int) -> bool:
    at.uses("log")
    row = at.rows.get(response_id)
    written = [] if row is None or row.folded else row.log
    return any((chunk.first_seq, chunk.attempt) == (seq, attempt) for chunk, _ in written)


def delete_orphaned_log(at: Memory, tenant: str, response_id: UUID) -> None:
    """No row is ever deleted here under its run, but one may be lost."""
    if response_id not in at.rows and (orphans := at.orphans.pop(response_id, None)):
        at.wrote(lambda: at.orphans.update({response_id: orphans}))


def read_updates(at: Memory, watched: Sequence[Subscription]) -> list[SubscriptionUpdate]:
    found = []
    for one in watched:
        row = at.rows.get(one.response_id)
        if row is None or row.deleted:
            found.append(SubscriptionUpdate(one, "gone", 0, []))
        elif row.stored.status in TERMINAL_STATUSES:
            found.append(SubscriptionUpdate(one, "ended", 0, []))
        elif one.next_seq is None:
            found.append(SubscriptionUpdate(one, "running", next_seq(at, one.tenant, one.response_id), []))
        elif new := read_log(at, one.tenant, one.response_id, one.next_seq):
            before = read_log(at, one.tenant, one.response_id, max(0, one.next_seq - 1))
            found.append(SubscriptionUpdate(one, "running", new[-1].event.sequence_number + 1, before))
    return found
