"""What the store's SQL means, over a database in memory.

`memory_places.installed` puts these functions in the place of those that send SQL. Rows of the log are held
against those before them: numbers without a gap, attempts that never go back, nothing after the end.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from server.protocol.responses.events import Event
from server.protocol.responses.response import TERMINAL_STATUSES, Ending, columns_of
from server.store import log_append, log_read
from server.store.administration.metering import Usage
from server.store.cluster import leases
from server.store.commit_probe import Acknowledged, Probe
from server.store.content.idempotency_keys import FirstUse, KeyUse
from server.store.content.item_rows import NewItem
from server.store.content.response_insert import NewResponse
from server.store.content.responses import (
    End,
    FinishedRow,
    Owner,
    ResponseKey,
    StoredResponse,
)
from server.store.database_errors import AlreadyThere
from server.store.log_append import NewLogRow
from server.store.log_read import LogProgress, Subscription, SubscriptionUpdate
from tests.support.memory import Memory, MemoryConnection, MemoryDatabase, Row

# --- what the SQL means; `at` is the memory, or a connection to it ---


def fence(at: Memory, replica: UUID) -> datetime:
    if replica not in at.alive:
        raise leases.Fenced
    return at.now


def write_heartbeat(at: Memory, replica: UUID, reading: Sequence[UUID] = ()) -> None:
    fence(at, replica)
    at.put(at.alive, replica, at.seconds)
    at.put(at.reading, replica, list(reading))


def remotely_read(at: Memory, replica: UUID, responses: Sequence[UUID]) -> list[UUID]:
    others = [at.reading.get(other, []) for other in at.alive if other != replica]
    return [one for one in responses if any(one in reading for reading in others)]


def other_heartbeats(at: Memory, replica: UUID) -> dict[UUID, float]:
    return {other: beaten for other, beaten in at.alive.items() if other != replica}


def expire_replicas(at: Memory, silent: Mapping[UUID, float], ttl_seconds: float) -> int:
    for replica in (expired := [one for one, seen in silent.items() if at.alive.get(one) == seen]):
        before = at.alive.pop(replica)
        at.undo.append(lambda replica=replica, before=before: at.alive.update({replica: before}))  # type: ignore[misc]
    return len(expired)


def release_orphans(at: Memory) -> dict[UUID, int]:
    left = [row for row in _unfinished(at) if row.stored.replica_id is not None]
    left = [row for row in left if row.stored.replica_id not in at.alive]
    found = Counter(row.stored.replica_id for row in left if row.stored.replica_id is not None)
    for row in left:
        at.change(row, replica_id=None, deaths=row.stored.deaths + _counted_death(row))
    return dict(found)


def _counted_death(row: Row) -> int:
    """1 unless the attempt stored tokens, or as a further one anything."""
    attempt = row.stored.attempt
    written = [chunk for chunk, _ in row.log if chunk.attempt == attempt]
    return int(not any(attempt > 1 or chunk.token_ids is not None for chunk in written))


def _unfinished(at: Memory) -> list[Row]:
    return [row for row in at.rows.values() if row.stored.status not in TERMINAL_STATUSES]


def _take(at: Memory, me: UUID, which: Callable[[StoredResponse], bool], limit: int) -> list[StoredResponse]:
    free = [row for row in _unfinished(at) if row.stored.id not in at.locked]
    taken = [row for row in free if row.stored.replica_id is None and which(row.stored)][:limit]
    for row in taken:
        at.change(row, status="in_progress", replica_id=me, attempt=row.stored.attempt + 1)
    return [row.stored for row in taken]


def claim_to_end(at: Memory, me: UUID, *, most_deaths: int, limit: int) -> list[StoredResponse]:
    def which(one: StoredResponse) -> bool:
        return not one.background or one.cancel_requested_at is not None or one.deaths >= most_deaths

    return _take(at, me, which, limit)


def claim_waiting(
    at: Memory, me: UUID, *, models: Sequence[str], full: Collection[str], limit: int
) -> list[StoredResponse]:
    return _take(at, me, lambda one: one.background and one.model in models and one.tenant not in full, limit)


def release(
    at: Memory, me: UUID, places: Sequence[ResponseKey], *, died: bool = False, skip_locked: bool = False
) -> int:
    handed_back = 0
    for place in places:
        if skip_locked and place.id in at.locked:
            continue
        at.lock(place.id)
        row = at.rows[place.id]
        if row.stored.replica_id == me and row.stored.status == "in_progress":
            at.change(row, replica_id=None, deaths=row.stored.deaths + (died and _counted_death(row)))
            handed_back += 1
    return handed_back


def claim_again(at: Memory, me: UUID, key: ResponseKey, attempt: int) -> bool:
    row = at.rows[key.id]
    if row.stored.status in TERMINAL_STATUSES or row.stored.replica_id is not None:
        return False
    if row.stored.attempt != attempt - 1:
        return False
    at.change(row, status="in_progress", replica_id=me, attempt=attempt)
    return True


def owned_responses(at: Memory, me: UUID) -> list[ResponseKey]:
    return [
        ResponseKey(row.stored.tenant, row.stored.id)
        for row in _unfinished(at)
        if row.stored.replica_id == me and row.stored.status == "in_progress"
    ]


def cancel_requested(at: Memory, me: UUID) -> list[UUID]:
    return [
        place.id
        for place in owned_responses(at, me)
        if at.rows[place.id].stored.cancel_requested_at is not None
    ]


def count_waiting(at: Memory, most: int) -> int:
    return min(most, sum(row.stored.replica_id is None for row in _unfinished(at)))


def request_cancel(at: Memory, tenant: str, response_id: UUID) -> None:
    row = at.rows.get(response_id)
    if row and not row.deleted and row.stored.status not in TERMINAL_STATUSES:
        at.change(row, cancel_requested_at=row.stored.cancel_requested_at or at.now)


def append(at: Memory, chunks: Iterable[NewLogRow]) -> None:
    for chunk in chunks:
        row = at.rows[chunk.response_id]
        end = row.log[-1][0].first_seq + row.log[-1][0].n if row.log else 0
        assert not row.folded, "an event after the end"
        assert chunk.first_seq == end, f"event {chunk.first_seq} where {end} comes next"
        assert not row.log or chunk.attempt >= row.log[-1][0].attempt, "an event of an earlier attempt"
        row.log.append((chunk, at.now.timestamp()))
        at.undo.append(lambda row=row: row.log.pop())  # type: ignore[misc]


def append_and_commit(
    at: MemoryConnection,
    replica: UUID,
    make: Callable[[datetime], Iterable[NewLogRow] | None],
    *,
    probes: Sequence[Probe],
    synchronous: bool,
) -> bool:
    with at.memory.begin():
        now, match = fence_with_probes(at.memory, replica, probes)
        rows = make(now) if match else None
        if rows is not None:
            append(at.memory, rows)
        return rows is not None


def fence_with_probes(at: Memory, replica: UUID, probes: Sequence[Probe]) -> tuple[datetime, bool]:
    return fence(at, replica), all(_matches(at, probe) for probe in probes)


def _matches(at: Memory, probe: Probe) -> bool:
    if probe.first_seq is None:
        return probe.response_id in at.metered
    row = at.rows.get(probe.response_id)
    if row is None or row.folded:
        return False
    return any(chunk.first_seq == probe.first_seq for chunk, _ in row.log)


def lost(at: Memory, replica: UUID, acknowledged: Sequence[Acknowledged]) -> list[UUID]:
    return [state.response_id for state in acknowledged if _is_lost(at, replica, state)]


def _is_lost(at: Memory, replica: UUID, state: Acknowledged) -> bool:
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


def compact(at: Memory, tenant: str, response_id: UUID) -> None:
    row = at.rows[response_id]
    row.folded = True
    at.undo.append(lambda: setattr(row, "folded", False))


def compact_unless_gap(at: Memory, tenant: str, response_id: UUID) -> None:
    """`append` lets no gap into a log."""
    compact(at, tenant, response_id)


def compact_all(at: Memory, ended: Sequence[ResponseKey]) -> None:
    for key in ended:
        compact(at, *key)


def read_log(at: Memory, tenant: str, response_id: UUID, first: int, limit: int | None = None) -> list[Event]:
    return log_read.decode_compacted(read_compacted(at, tenant, response_id), first)[:limit]


def read_compacted(at: Memory, tenant: str, response_id: UUID) -> str:
    row = at.rows.get(response_id)
    rows = [] if row is None or (row.deleted and row.folded) else row.log
    return msgspec.json.encode(
        [[*chunk[2:7], moment, msgspec.Raw(chunk.body)] for chunk, moment in rows]
    ).decode()


def read_progress(at: Memory, tenant: str, response_id: UUID) -> LogProgress:
    row = at.rows[response_id]
    if row.folded or not row.log:
        return LogProgress([], 0, None)
    given = [(chunk, moment) for chunk, moment in row.log if chunk.token_ids is not None]
    pieces = [(chunk.first_seq, memoryview(chunk.token_ids or b"").cast("i").tolist()) for chunk, _ in given]
    first = datetime.fromtimestamp(given[0][1], UTC) if given else None
    return LogProgress(pieces, row.log[-1][0].first_seq + row.log[-1][0].n, first)


def next_seq(at: Memory, tenant: str, response_id: UUID) -> int:
    return read_progress(at, tenant, response_id).next_seq


def is_logged(at: Memory, tenant: str, response_id: UUID, seq: int, attempt: int) -> bool:
    row = at.rows.get(response_id)
    written = [] if row is None or row.folded else row.log
    return any((chunk.first_seq, chunk.attempt) == (seq, attempt) for chunk, _ in written)


def delete_orphaned_log(at: Memory, tenant: str, response_id: UUID) -> None:
    """No row is ever deleted here under its run."""
    assert response_id in at.rows


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
            found.append(SubscriptionUpdate(one, "running", new[-1].sequence_number + 1, new))
    return found


def insert(
    at: Memory,
    new: NewResponse,
    input_items: Sequence[NewItem],
    first_events: Sequence[Event],
    replica: UUID | None,
) -> bool:
    if new.previous_id is not None and get(at, new.tenant, new.previous_id) is None:
        return False
    if replica is None:
        _insert(at, new, status="queued", attempt=0)
    else:
        _insert(at, new, status="in_progress", replica_id=replica, attempt=1)
    insert_items_of(at, 0, [(new.tenant, new.id, input_items)])
    append(at, log_append.encode_rows(new.tenant, new.id, 0 if replica is None else 1, first_events, ()))
    return True


def insert_and_commit(database: MemoryDatabase, new: NewResponse, *content: Any) -> bool:
    def work(at: Memory) -> bool:
        if new.id in at.rows:
            raise AlreadyThere("insert", None, ValueError("the row is there"))
        return insert(at, new, *content)

    return database.autocommit(work)


def _insert(at: Memory, new: NewResponse, **more: Any) -> None:
    fields: dict[str, Any] = dict.fromkeys(StoredResponse.__dataclass_fields__)
    known = {name: getattr(new, name) for name in NewResponse.__dataclass_fields__ if name in fields}
    stored = StoredResponse(**{**fields, "deaths": 0, **known, **more})
    assert new.id not in at.rows
    at.put(at.rows, new.id, Row(stored))


def insert_items_of(at: Memory, side: int, of: Iterable[tuple[str, UUID, Sequence[NewItem]]]) -> None:
    for _tenant, response_id, new in of:
        items = at.rows[response_id].items
        assert not items[side] or not new, "items are written twice"
        at.put(items, side, [item.payload for item in new])


def get(at: Memory, tenant: str, response_id: UUID) -> StoredResponse | None:
    row = at.rows.get(response_id)
    return row.stored if row and not row.deleted else None


def input_items(at: Memory, tenant: str, response_id: UUID) -> list[str]:
    return at.rows[response_id].items[0]


def output_items(at: Memory, tenant: str, response_id: UUID) -> list[str]:
    return at.rows[response_id].items[1]


def finish(
    at: Memory,
    tenant: str,
    response_id: UUID,
    replica: UUID,
    attempt: int,
    ending: Ending,
    lifetime: timedelta | None = None,
) -> FinishedRow:
    assert lifetime is None, "every response here is stored for good"
    at.lock(response_id)
    row = at.rows[response_id]
    stored = row.stored
    assert (stored.replica_id, stored.attempt, stored.status) == (replica, attempt, "in_progress"), stored
    fields = StoredResponse.__dataclass_fields__
    at.change(row, **{name: value for name, value in columns_of(ending).items() if name in fields})
    return FinishedRow(row.deleted, None)


def finish_all(at: Memory, replica: UUID, ends: Sequence[End]) -> dict[ResponseKey, FinishedRow]:
    return {
        end.key: finish(at, end.key.tenant, end.key.id, replica, end.attempt, end.ending, end.lifetime)
        for end in ends
    }


def get_owner(at: Memory, tenant: str, response_id: UUID) -> Owner | None:
    stored = at.rows[response_id].stored
    return Owner(stored.replica_id, stored.attempt, stored.status in TERMINAL_STATUSES)


def record_usage(at: Memory, entries: Sequence[tuple[Usage, Ending]]) -> None:
    for usage, ending in entries:
        assert usage.response_id not in at.metered, "metered twice"
        at.put(at.metered, usage.response_id, ending)


def is_metered(at: Memory, tenant: str, response_id: UUID) -> bool:
    return response_id in at.metered


def delete(at: Memory, tenant: str, response_id: UUID) -> bool | None:
    row = at.rows.get(response_id)
    if row is None or row.deleted:
        return None
    request_cancel(at, tenant, response_id)
    row.deleted = True
    at.undo.append(lambda: setattr(row, "deleted", False))
    return row.stored.status not in TERMINAL_STATUSES


def remove_if_unneeded(at: Memory, tenant: str, response_id: UUID) -> None:
    """What a deleted response held stays here for the checks; no reader sees it."""


def stored_bytes(at: Memory, tenant: str) -> int:
    """Of the rows that are there; what a deleted one held stays here."""
    there = [row for row in at.rows.values() if row.stored.tenant == tenant and not row.deleted]
    texts = [text for row in there for side in row.items.values() for text in side]
    return sum(map(len, texts)) + sum(len(chunk.body) for row in there for chunk, _ in row.log)


def find(at: Memory, tenant: str, key: str) -> FirstUse | None:
    return at.keys.get(key)


def claim(at: Memory, tenant: str, key: str, digest: bytes, response: UUID) -> bool:
    before = at.keys.get(key)
    if before is not None and before.response_id != response:
        return False
    at.put(at.keys, key, FirstUse(digest, response))
    return True


def release_lost(at: Memory, tenant: str, key: str, response: UUID) -> bool:
    """As while a replica lives that is as old as every key."""
    return False


def free(at: Memory, uses: Sequence[KeyUse]) -> set[UUID]:
    freed = set()
    for use in uses:
        first = at.keys.get(use.key)
        if first is not None and first.response_id == use.response_id:
            at.put(at.keys, use.key, None)
            freed.add(use.response_id)
    return freed


def set_timeouts(_at: Memory, **_limits: int) -> None:
    """No statement waits here."""
