"""A database in memory, for simulations in one thread: transactions that may fail, and rows.

A transaction runs at once and alone, so a lock is never waited for; it may be undone, or committed without
its answer, when `trouble` says so. Every change of a status is held against `states.py`.
"""

# ruff: noqa: ARG002 - what is here has the arguments of what it stands for

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeVar
from uuid import UUID

import psycopg
from sqlalchemy.exc import OperationalError

from server.protocol.responses import response as states
from server.protocol.responses.response import Ending
from server.store.content.idempotency_keys import FirstUse
from server.store.content.images import StoredImage
from server.store.content.responses import StoredResponse
from server.store.log_append import NewLogRow

T = TypeVar("T")
Trouble = Literal["", "undone", "unanswered"]
EPOCH = datetime(2026, 5, 4, tzinfo=UTC)
TRIES = 50


@dataclass
class Row:
    """A response and all that belongs to it."""

    stored: StoredResponse
    deleted: bool = False
    items: dict[int, list[str]] = field(default_factory=lambda: {0: [], 1: []})
    log: list[tuple[NewLogRow, float]] = field(default_factory=list)
    folded: bool = False


@dataclass
class Memory:
    """One database."""

    trouble: Callable[[], Trouble] = lambda: ""
    seconds: float = 0.0
    alive: dict[UUID, float] = field(default_factory=dict)
    """Replicas that nobody declared dead, by their last heartbeat."""
    reading: dict[UUID, list[UUID]] = field(default_factory=dict)
    """What they told with it that is read through them and runs elsewhere."""
    rows: dict[UUID, Row] = field(default_factory=dict)
    metered: dict[UUID, Ending] = field(default_factory=dict)
    locked: set[UUID] = field(default_factory=set)
    """Responses whose rows somebody holds; whoever runs them cannot end them meanwhile."""
    keys: dict[str, FirstUse] = field(default_factory=dict)
    images: dict[tuple[str, bytes], StoredImage] = field(default_factory=dict)
    undo: list[Callable[[], None]] = field(default_factory=list)

    @property
    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self.seconds)

    @contextmanager
    def begin(self) -> Iterator["Memory"]:
        assert not self.undo
        try:
            yield self
            trouble = self.trouble()
            if trouble == "undone":
                raise lost()
        except BaseException:
            for act in reversed(self.undo):
                act()
            self.undo.clear()
            raise
        self.undo.clear()
        if trouble == "unanswered":
            raise lost()

    def change(self, row: Row, **changes: Any) -> None:
        """Changes columns of a response."""
        before = row.stored
        row.stored = _replaced(before, changes)
        if row.stored.status != before.status:
            assert states.is_transition(before.status, row.stored.status), (before.status, row.stored.status)
        self.undo.append(lambda: setattr(row, "stored", before))

    def lock(self, response: UUID) -> None:
        """Raises what Postgres says when a lock is not got in time."""
        if response in self.locked:
            raise OperationalError("", None, psycopg.errors.LockNotAvailable("a row is locked"))

    def put(self, place: dict[Any, Any], key: Any, value: Any) -> None:
        before = place.get(key)

        def act() -> None:
            if before is None:
                del place[key]
            else:
                place[key] = before

        place[key] = value
        self.undo.append(act)


def lost() -> OperationalError:
    return OperationalError("", None, psycopg.OperationalError("the connection is lost"))


def _replaced(stored: StoredResponse, changes: dict[str, Any]) -> StoredResponse:
    fields = {name: getattr(stored, name) for name in StoredResponse.__dataclass_fields__}
    return StoredResponse(**{**fields, **changes})


class MemoryDatabase:
    """What a replica has instead of a `Database`."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.begin = memory.begin
        self.waits_for_disk = True

    def retry(self, work: Callable[[Any], T], seconds: float = 0) -> T:
        for _ in range(TRIES):
            try:
                with self._memory.begin() as connection:
                    return work(connection)
            except OperationalError:
                continue
        raise AssertionError("trouble without end")

    def read(self, work: Callable[[Any], T]) -> T:
        return self.retry(work)

    autocommit = read

    def now(self) -> datetime:
        return self._memory.now

    def dedicated_connection(
        self, name: str, *, autocommit: bool = False, limits: str = ""
    ) -> "MemoryConnection":
        return MemoryConnection(self._memory)


class MemoryConnection:
    """One that a thread keeps."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory

    @contextmanager
    def begin(self) -> Iterator[None]:
        with self.memory.begin():
            yield

    def invalidate(self) -> None: ...

    def close(self) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return getattr(self.memory, name)
