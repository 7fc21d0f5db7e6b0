"""What the store's SQL means, over a database in memory.

`memory_places.installed` puts these functions in the place of those that send SQL. That of the log is in
`memory_log`.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from engine.request import IDLE_PRIORITY
from server.protocol.responses.events import Event
from server.protocol.responses.response import TERMINAL_STATUSES, CancelReason, Ending, columns_of
from server.store import log_append
from server.store.administration.ledger import LedgerEntry
from server.store.cluster import leases
from server.store.content.idempotency_keys import FirstUse, KeyUse
from server.store.content.item_rows import NewItem
from server.store.content.responses import (
    End,
    FinishedRow,
    NewResponse,
    Owner,
    ResponseKey,
    StoredResponse,
)
from server.store.database_errors import AlreadyThere, OwnershipLost
from tests.support.memory import Memory, MemoryConnection, MemoryDatabase, Row
from tests.support.memory_journal import Change, Commit

# --- what the SQL means; `at` is the memory, or a connection to it ---


def fence(at: Memory, replica: UUID) -> datetime:
    if replica not in at.alive:
        raise leases.Fenced
    at.wrote(lambda: None)  # the lock
    return at.now


def register_replica(memory: Memory, replica: UUID) -> None:
    memory.alive[replica] = memory.seconds
    memory.journal.add(Commit([Change(lambda: memory.alive.pop(replica, None))], waited=True, actor=None))


def commit_synchronously(at: MemoryConnection) -> None:
    at.memory.synchronous = True


def write_heartbeat(at: Memory, replica: UUID, reading: Sequence[UUID] = ()) -> None:
    fence(at, replica)
    at.put(at.alive, replica, at.seconds)
    at.put(at.reading, replica, list(reading))


def remotely_read(at: Memory, replica: UUID, responses: Sequence[UUID]) -> list[UUID]:
    others = [at.reading.get(other, []) for other in at.alive if other != replica]
    return [one for one in responses if any(one in reading for reading in others)]


def other_heartbeats(at: Memory, replica: UUID) -> dict[UUID, str]:
    return {other: str(beaten) for other, beaten in at.alive.items() if other != replica}


def expire_replicas(at: Memory, silent: Mapping[UUID, str], ttl_seconds: float) -> int:
    for replica in (expired := [one for one, seen in silent.items() if str(at.alive.get(one)) == seen]):
        before = at.alive.pop(replica)
        at.wrote(lambda replica=replica, before=before: at.alive.update({replica: before}))  # type: ignore[misc]
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
    at.uses("responses")
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
    at: Memory,
    me: UUID,
    *,
    models: Sequence[str],
    full: Collection[str],
    most_deaths: int,
    limit: int,
    idle: bool = False,
) -> list[StoredResponse]:
    def which(one: StoredResponse) -> bool:
        if (one.priority >= IDLE_PRIORITY) != idle:
            return False
        return one.background and one.deaths < most_deaths and one.model in models and one.tenant not in full

    return _take(at, me, which, limit)


def release(
    at: Memory, me: UUID, places: Sequence[ResponseKey], *, died: bool = False, skip_locked: bool = False
) -> int:
    handed_back = 0
    for place in places:
        if skip_locked and place.id in at.locked:
            continue
        at.uses("responses")
        at.lock(place.id)
        row = at.rows.get(place.id)
        if row is not None and row.stored.replica_id == me and row.stored.status == "in_progress":
            at.change(row, replica_id=None, deaths=row.stored.deaths + (died and _counted_death(row)))
            handed_back += 1
    return handed_back


def claim_again(at: Memory, me: UUID, key: ResponseKey, attempt: int) -> bool:
    row = at.rows.get(key.id)
    if row is None or row.stored.status in TERMINAL_STATUSES or row.stored.replica_id is not None:
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


def cancel_requested(at: Memory, me: UUID) -> list[tuple[UUID, CancelReason | None]]:
    return [
        (place.id, at.rows[place.id].stored.cancel_reason)
        for place in owned_responses(at, me)
        if at.rows[place.id].stored.cancel_requested_at is not None
    ]


def count_waiting(at: Memory, most: int) -> int:
    return min(most, sum(row.stored.replica_id is None for row in _unfinished(at)))


def request_cancel(at: Memory, tenant: str, response_id: UUID, reason: CancelReason) -> None:
    row = at.rows.get(response_id)
    if row and not row.deleted and row.stored.status not in TERMINAL_STATUSES:
        at.change(
            row,
            cancel_requested_at=row.stored.cancel_requested_at or at.now,
            cancel_reason=row.stored.cancel_reason or reason,
        )


def fail_undecodable(database: MemoryDatabase, _replica: UUID, _claimed: StoredResponse) -> bool:
    """All that is stored here can be decoded."""
    database.memory.must(False, "a response ended as undecodable")
    return False


def insert(
    at: Memory,
    new: NewResponse,
    input_items: Sequence[NewItem],
    first_events: Sequence[Event],
    replica: UUID | None,
) -> bool:
    if new.previous_id is not None and get(at, new.facts.tenant, new.previous_id) is None:
        return False
    if replica is None:
        _insert(at, new, status="queued", attempt=0)
    else:
        _insert(at, new, status="in_progress", replica_id=replica, attempt=1)
    insert_items_of(at, 0, [(new.facts.tenant, new.facts.id, input_items)])
    rows = log_append.encode_rows(
        new.facts.tenant, new.facts.id, 0 if replica is None else 1, first_events, ()
    )
    log_append.append(at, rows)  # type: ignore[arg-type]  # that of `memory_log`
    return True


def committing_insert(new: NewResponse, *content: Any) -> tuple[Callable[[Memory], bool], tuple[()]]:
    """What `MemoryDatabase.scalar` commits."""

    def work(at: Memory) -> bool:
        if new.facts.id in at.rows:
            raise AlreadyThere("insert", None, ValueError("the row is there"))
        return insert(at, new, *content)

    return work, ()


def _insert(at: Memory, new: NewResponse, **more: Any) -> None:
    fields: dict[str, Any] = dict.fromkeys(StoredResponse.__dataclass_fields__)
    known = {name: getattr(new, name) for name in NewResponse.__dataclass_fields__ if name in fields}
    known |= new.facts.facts()
    stored = StoredResponse(**{**fields, "deaths": 0, **known, **more})
    at.uses("responses")
    at.must(new.facts.id not in at.rows, "a response is accepted twice")
    at.put(at.rows, new.facts.id, Row(stored))


def insert_items_of(at: Memory, side: int, of: Iterable[tuple[str, UUID, Sequence[NewItem]]]) -> None:
    at.uses("items")
    for _tenant, response_id, new in of:
        items = at.rows[response_id].items
        at.must(not items[side] or not new, "items are written twice")
        at.put(items, side, [item.payload for item in new])


def get(at: Memory, tenant: str, response_id: UUID) -> StoredResponse | None:
    at.uses("responses")
    row = at.rows.get(response_id)
    return row.stored if row and not row.deleted else None


def set_weights(at: Memory, claimed: StoredResponse, weights: str | None) -> None:
    row = at.rows[claimed.id]
    if (row.stored.replica_id, row.stored.attempt) == (claimed.replica_id, claimed.attempt):
        at.change(row, weights=weights)


def input_items(at: Memory, tenant: str, response_id: UUID) -> list[str]:
    at.uses("items")
    return at.rows[response_id].items[0]


def output_items(at: Memory, tenant: str, response_id: UUID) -> list[str]:
    at.uses("items")
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
    at.must(lifetime is None, "every response here is stored for good")
    at.uses("responses")
    at.lock(response_id)
    row = at.rows.get(response_id)
    if row is None or get_owner(at, tenant, response_id) != Owner(replica, attempt, ended=False):
        raise OwnershipLost
    fields = StoredResponse.__dataclass_fields__
    at.change(row, **{name: value for name, value in columns_of(ending).items() if name in fields})
    return FinishedRow(row.deleted, None)


def finish_all(at: Memory, replica: UUID, ends: Sequence[End]) -> dict[ResponseKey, FinishedRow]:
    return {
        end.key: finish(at, end.key.tenant, end.key.id, replica, end.attempt, end.ending, end.lifetime)
        for end in ends
    }


def get_owner(at: Memory, tenant: str, response_id: UUID) -> Owner | None:
    at.uses("responses")
    if (row := at.rows.get(response_id)) is None:
        return None
    stored = row.stored
    return Owner(stored.replica_id, stored.attempt, stored.status in TERMINAL_STATUSES)


def record_usage(at: Memory, entries: Sequence[tuple[LedgerEntry, Ending]]) -> None:
    at.uses("usage")
    for usage, ending in entries:
        at.must(usage.facts.id not in at.metered, "metered twice")
        at.put(at.metered, usage.facts.id, ending)


def is_metered(at: Memory, tenant: str, response_id: UUID) -> bool:
    at.uses("usage")
    return response_id in at.metered


def delete(at: Memory, tenant: str, response_id: UUID) -> bool | None:
    row = at.rows.get(response_id)
    if row is None or row.deleted:
        return None
    request_cancel(at, tenant, response_id, "deleted")
    row.deleted = True
    at.wrote(lambda: setattr(row, "deleted", False))
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


def claim(
    at: Memory,
    tenant: str,
    key: str,
    digest: bytes,
    response: UUID,
    replica: UUID | None = None,
) -> bool:
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
