"""`Erasure`: removes everything of a tenant or of one of its users, beside servers or without any.

An erasure is a number of passes. Each looks for what is there, has it cancelled, waits until it has ended,
and removes it in small transactions; the erasure is over after a pass that finds nothing. So it goes on where
an earlier one was killed, and what arrives meanwhile is found by the next pass.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import TypeVar
from uuid import UUID

from server.maintenance.partition_drop import PartitionDrop
from server.maintenance.retention import remove_images
from server.store.administration import stored_keys, usage_days
from server.store.cluster import leases
from server.store.cluster.leases import HeartbeatWatch
from server.store.database import Connection, Database
from server.store.erasure import response_rows, tenant_rows, user_rows
from server.store.erasure.subject import Subject, public_names
from server.store.erasure.user_rows import UserRows, Walk

SETTLE_SECONDS = 2.0
"""Servers end what runs with a revoked key within a second, and settle its limits half a second later."""
BATCH_SECONDS = 0.1
"""The time that a transaction should take: others wait for its locks."""
MAX_BATCH = 500
_FIRST_BATCH = 16
_CHUNK = 500
"""Ids that one statement takes."""
_PAUSE_S = 0.2
_LAST_LOOK_S = 2.0
"""Time beyond the limit for the pass that finds nothing, once all that was there is gone."""
_NO_REPLICA = UUID(int=0)
_YOUNG_DAYS = 1
"""Entries of the ledger that are younger are in no partition that was detached before they were written."""
T = TypeVar("T")


@dataclass(slots=True)
class Outcome:
    """The rows that an erasure removed, or would remove."""

    complete: bool = False
    """Whether nothing is left."""
    rows: Counter[str] = field(default_factory=Counter)
    """Removed rows by table; of `usage_ledger` and `audit_trail` also those without their names now."""
    unfinished: int = 0
    """Responses that have not ended yet, so that nothing of them was removed. Those of others count that run
    in a conversation with items of the user: what the user made goes after them."""
    later_responses: int = 0
    """Responses of others that went on from the user's, so that their history is the user's."""
    readers: list[str] = field(default_factory=list)
    """Database users that read this tenant's rows alone."""
    keeps_trail: bool = False
    """Whether the audit trail is left as it is, because this database user may not change its entries."""


def next_batch(size: int, seconds: float) -> int:
    """The size of the next batch after one of `size` rows that took so long. Pure."""
    fitting = size * 2 if seconds <= 0 else int(size * BATCH_SECONDS / seconds)
    return max(1, min(fitting, size * 2, MAX_BATCH))


class Erasure:
    """One run of it. Not thread-safe."""

    def __init__(
        self,
        database: Database,
        subject: Subject,
        lease_seconds: float,
        clock: Callable[[], float] = monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._database = database
        self._subject, self._tenant, self._user = subject, subject.tenant, subject.user
        self._clock, self._sleep = clock, sleep
        self._lease_seconds = lease_seconds
        self._watch = HeartbeatWatch(lease_seconds)
        self._drop = PartitionDrop(database, 0, _YOUNG_DAYS, 0)
        self._until = 0.0
        self._counted = set[UUID]()
        self._own = set[UUID]()
        self._is_marked = False
        self.outcome = Outcome()

    def count(self) -> Outcome:
        """Counts the rows that would be removed. Raises DatabaseError."""
        if self._user is None:
            self._count_tenant()
        else:
            self._count_user()
        self._keeps_trail()
        return self.outcome

    def run(self, seconds: float) -> Outcome:
        """Removes for about so many seconds, and leaves the rest to the next run. Raises DatabaseError."""
        self._until = self._clock() + seconds
        revoked = self._user is None and self._transaction(self._revoke_keys)
        settled = self._clock() + (SETTLE_SECONDS if revoked or self._any_alive() else 0.0)
        last_look = False
        while self._in_time():
            before, began = self.outcome.rows.total(), self._clock()
            self._transaction(tenant_rows.forget_readings)
            dropped = self._drop.finish()
            has_rows = self._pass_tenant() if self._user is None else self._pass_user()
            has_rows = has_rows or not dropped or self.outcome.rows.total() > before
            if not has_rows and began >= settled:
                self.outcome.complete = True
                break
            if not (last_look or self.outcome.unfinished) and self._in_time():
                last_look = True
                self._until = max(self._until, max(self._clock(), settled) + _LAST_LOOK_S)
            if self.outcome.unfinished or not has_rows:
                self._sleep(_PAUSE_S)
        return self.outcome

    def _in_time(self) -> bool:
        return self._clock() < self._until

    def _transaction(self, work: Callable[..., T], /, **arguments: object) -> T:
        return self._database.retry(partial(work, **arguments))

    def _add(self, table: str, work: Callable[..., int], /, **arguments: object) -> int:
        """Counts the rows that a transaction changes."""
        changed = self._transaction(work, **arguments)
        self.outcome.rows[table] += changed
        return changed

    def _revoke_keys(self, connection: Connection) -> int:
        """Revokes a tenant's keys, so that it makes nothing new, and ends what runs with them."""
        self.outcome.readers = tenant_rows.readers_of(connection, self._tenant)
        keys = stored_keys.list_page(connection, self._tenant)
        for key in keys:
            stored_keys.revoke(connection, key.id)
            stored_keys.end_streams(connection, key.id)
        return len(keys)

    def _pass_tenant(self) -> bool:
        """Removes what has ended; whether something has not."""
        while self._transaction(response_rows.cancel_all, tenant=self._tenant, limit=_CHUNK):
            pass
        self._settle(self._transaction(response_rows.unfinished, tenant=self._tenant, limit=_CHUNK))
        if self.outcome.unfinished:
            return True
        self._sweep("idempotency_keys")
        self._in_batches("responses", response_rows.remove_newest, subject=self._subject)
        for table in tenant_rows.tenant_tables():
            if table == "images":
                remove_images(self._database)
            if table != "responses":
                self._sweep(table)
        if not self._keeps_trail():
            self._add("audit_trail", tenant_rows.reduce_purges, tenant=self._tenant)
        return False

    def _sweep(self, table: str) -> None:
        """Removes a tenant's rows of a table."""
        keep = self._subject.keep_usage
        self._in_batches(table, tenant_rows.remove_rows, table=table, tenant=self._tenant, keep_usage=keep)

    def _in_batches(self, counted: str, remove: Callable[..., int], /, **arguments: object) -> None:
        """Removes batches, each of a size that its transaction has the time for, until one finds nothing."""
        size = _FIRST_BATCH
        while self._in_time():
            began = self._clock()
            if not self._add(counted, remove, limit=size, **arguments):
                return
            size = next_batch(size, self._clock() - began)

    def _pass_user(self) -> bool:
        """Removes what is found of the user; whether anything was."""
        assert self._user is not None
        self._add("user_days", usage_days.forget, tenant=self._tenant, user=self._user)
        found = self._find()
        if not (found.responses or found.lines or found.conversations or self._is_marked):
            return False
        self._is_marked = True
        self._own |= {*found.responses, *found.lines}
        doomed = self._mark(found.responses)
        self._settle(self._unfinished_of(doomed))
        if not self.outcome.unfinished:
            self._remove_user(doomed, found)
            remove_images(self._database)
            self._is_marked = False
        return True

    def _remove_user(self, doomed: Sequence[UUID], found: UserRows) -> None:
        """The ledger comes last: it names responses that are gone already, and tells whose items are."""
        subject = self._subject
        for conversation in sorted(found.conversations):
            of: dict[str, object] = {"subject": subject, "conversation": conversation}
            removed = self._transaction(user_rows.take_out_of_conversation, **of)
            if removed is None:
                self.outcome.unfinished += 1
            else:
                self.outcome.rows.update(conversations=removed[0], conversation_items=removed[1])
        if self.outcome.unfinished:
            return
        known = {*doomed, *self._own}
        if not self._keeps_trail():
            for names in _chunks(public_names([*known, *found.conversations])):
                self._add("audit_trail", tenant_rows.reduce_targets, tenant=self._tenant, names=names)
        for table in response_rows.tables_of_responses():
            for ids in _chunks(known):
                of = {"table": table, "tenant": self._tenant, "ids": ids}
                self._add(table, response_rows.remove_of_responses, **of)
        remaining, size = sorted(doomed), _FIRST_BATCH
        while remaining and self._in_time():
            began, newest = self._clock(), remaining[-size:]
            self._add("responses", response_rows.remove, subject=subject, ids=newest)
            del remaining[-size:]
            size = next_batch(size, self._clock() - began)
        for ids in _chunks(self._own):
            self._add("usage_ledger", response_rows.anonymise_lines, tenant=self._tenant, ids=ids)

    def _keeps_trail(self) -> bool:
        self.outcome.keeps_trail = not self._transaction(tenant_rows.may_change_trail)
        return self.outcome.keeps_trail

    def _find(self) -> UserRows:
        walk = Walk(self._subject)
        while self._transaction(walk.step):
            pass
        return walk.found

    def _later(self, ids: Sequence[UUID]) -> set[UUID]:
        """The responses, and all that go on from them."""
        responses = set[UUID]()
        for chunk in _chunks(ids):
            responses |= self._transaction(response_rows.with_later_ones, tenant=self._tenant, ids=chunk)
        return responses

    def _mark(self, own: Sequence[UUID]) -> list[UUID]:
        """Marks responses and all that go on from them, until none can be added; returns all of these."""
        marked = set[UUID]()
        while True:
            doomed = self._later(own)
            unmarked = sum(
                self._transaction(response_rows.mark, tenant=self._tenant, ids=chunk)
                for chunk in _chunks(sorted(doomed))
            )
            if (not unmarked and doomed <= marked) or not self._in_time():
                self.outcome.later_responses += len(doomed - set(own) - self._counted)
                self._counted |= doomed
                return sorted(doomed)
            marked = doomed
            if unmarked:
                self._sleep(_PAUSE_S)

    def _unfinished_of(self, ids: Collection[UUID]) -> list[UUID]:
        return [
            id_
            for chunk in _chunks(ids)
            for id_ in self._transaction(response_rows.unfinished_of, tenant=self._tenant, ids=chunk)
        ]

    def _settle(self, running: Sequence[UUID]) -> None:
        """Ends those of the running responses that no living replica will end; counts the others."""
        ended = 0
        if running:
            self._any_alive()
        for chunk in _chunks(running):
            of: dict[str, object] = {"subject": self._subject, "ids": chunk, "limit": _CHUNK}
            ended += self._add("responses", response_rows.remove_abandoned, **of)
        self.outcome.unfinished = len(running) - ended

    def _any_alive(self) -> bool:
        """Declares dead what has been silent for a lease, as every replica does; whether any is alive."""
        with self._database.begin() as connection:
            heartbeats = leases.other_heartbeats(connection, _NO_REPLICA)
            silent = self._watch.observe(self._clock(), heartbeats)
            if silent:
                leases.expire_replicas(connection, silent, self._lease_seconds)
            leases.release_orphans(connection)
        return len(heartbeats) > len(silent)

    def _count_tenant(self) -> None:
        with self._database.begin() as connection:
            self.outcome.rows = tenant_rows.counts(connection, self._tenant)
            running = response_rows.unfinished(connection, self._tenant, tenant_rows.COUNTED)
            self.outcome.readers = tenant_rows.readers_of(connection, self._tenant)
        self.outcome.unfinished = len(running)

    def _count_user(self) -> None:
        found = self._find()
        doomed = self._later(found.responses)
        self.outcome.later_responses = len(doomed) - len(set(found.responses))
        self.outcome.unfinished = len(self._unfinished_of(doomed))
        self.outcome.rows = +Counter(
            responses=len(doomed), conversations=len(found.conversations), usage_ledger=len(found.lines)
        )


def _chunks(values: Collection[T]) -> Iterator[list[T]]:
    listed = list(values)
    for start in range(0, len(listed), _CHUNK):
        yield listed[start : start + _CHUNK]
