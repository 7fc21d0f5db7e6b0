"""A database in memory, for simulations in one thread: transactions that may fail, and rows.

A transaction runs at once and alone, so a lock is never waited for; it may be undone, or committed without
its answer, when `trouble` says so, and a crash may follow. Every change of a status is held against
`states.py`. What must never be asked of a database is noted in `violations`, because callers catch errors.
"""

# ruff: noqa: ARG002 - what is here has the arguments of what it stands for

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeVar
from uuid import UUID

import psycopg
from sqlalchemy.exc import OperationalError

from server.protocol.responses.response import Ending
from server.store.content.idempotency_keys import FirstUse
from server.store.content.images import StoredImage
from server.store.content.responses import StoredResponse
from server.store.database_errors import is_read_only
from server.store.log_append import NewLogRow
from tests.support import states
from tests.support.memory_environment import Environment, Table
from tests.support.memory_journal import Change, Commit, Journal

T = TypeVar("T")
Trouble = Literal["", "undone", "unanswered", "crash before", "crash after"]
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
    orphans: dict[UUID, list[NewLogRow]] = field(default_factory=dict)
    """Rows of the log without a response, whose row was lost."""
    waits_for_disk: bool = True
    """Whether every commit does, or only those that are to."""
    crash: Callable[[], None] = lambda: None
    actor: Callable[[], object] = lambda: None
    """Who makes a commit."""
    changes: list[Change] = field(default_factory=list)
    """Of the transaction that is open."""
    synchronous: bool = True
    """Whether its commit waits for the disk."""
    journal: Journal = field(default_factory=Journal)
    environment: Environment = field(default_factory=Environment)
    sessions: int = 0
    """Grows when all open connections are cut."""
    violations: list[str] = field(default_factory=list)

    @property
    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self.seconds)

    @contextmanager
    def begin(self, *, synchronous: bool = True) -> Iterator["Memory"]:
        assert not self.changes
        self.synchronous = synchronous
        trouble: Trouble = ""
        try:
            yield self
            trouble = self.trouble()
            if trouble in ("undone", "crash before"):
                raise lost()
        except BaseException:
            for change in reversed(self.changes):
                change.undo()
            self.changes = []
            if trouble == "crash before":
                self.crash()
            raise
        self.journal.add(Commit(self.changes, self.synchronous, self.actor()))
        self.changes = []
        if trouble == "crash after":
            self.crash()
        if trouble:
            raise lost()

    def wrote(self, undo: Callable[[], None], row: NewLogRow | None = None) -> None:
        """Notes a change in the open transaction. Raises OperationalError if the session takes no writes."""
        self.changes.append(Change(undo, row))
        self.environment.check_write(self.seconds)

    def uses(self, table: Table) -> None:
        """Raises ProgrammingError without the right to this table."""
        self.environment.check_right(table, self.seconds)

    def must(self, holds: object, sentence: str) -> None:
        if not holds:
            self.violations.append(sentence)
            raise AssertionError(sentence)

    def change(self, row: Row, **changes: Any) -> None:
        """Changes columns of a response."""
        before = row.stored
        row.stored = _replaced(before, changes)
        if row.stored.status != before.status:
            after = row.stored.status
            self.must(states.is_transition(before.status, after), f"{after} after {before.status}")
        self.wrote(lambda: setattr(row, "stored", before))

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
        self.wrote(act)


def lost() -> OperationalError:
    return OperationalError("", None, psycopg.OperationalError("the connection is lost"))


def _replaced(stored: StoredResponse, changes: dict[str, Any]) -> StoredResponse:
    fields = {name: getattr(stored, name) for name in StoredResponse.__dataclass_fields__}
    return StoredResponse(**{**fields, **changes})


class _Session:
    """A connection, or a pool of them: after all were cut, the next use fails, once."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self._opened = memory.sessions

    @property
    def is_cut(self) -> bool:
        return self._opened != self.memory.sessions

    def use(self) -> None:
        if self.is_cut:
            self._opened = self.memory.sessions
            raise lost()


class MemoryDatabase(_Session):
    """What a replica has instead of a `Database`."""

    @property
    def waits_for_disk(self) -> bool:
        return self.memory.waits_for_disk

    @contextmanager
    def begin(self) -> Iterator[Memory]:
        self.use()
        with self.memory.begin() as memory:
            yield memory

    def retry(self, work: Callable[[Any], T], seconds: float = 0) -> T:
        for _ in range(TRIES):
            try:
                with self.begin() as connection:
                    return work(connection)
            except OperationalError as error:
                if is_read_only(error):
                    raise  # for longer than anybody waits
        raise AssertionError("trouble without end")

    def read(self, work: Callable[[Any], T]) -> T:
        return self.retry(work)

    autocommit = read

    def scalar(self, work: Callable[[Any], T], _values: Sequence[object] = ()) -> T:
        return self.retry(work)

    def now(self) -> datetime:
        return self.memory.now

    def dedicated_connection(
        self, name: str, *, autocommit: bool = False, limits: str = ""
    ) -> "MemoryConnection":
        return MemoryConnection(self.memory)


class MemoryConnection(_Session):
    """One that a thread of the recorder keeps: its commits wait for the disk only if they are to."""

    @contextmanager
    def begin(self, *, synchronous: bool = False) -> Iterator[None]:
        self.use()
        with self.memory.begin(synchronous=self.memory.waits_for_disk or synchronous):
            yield

    def invalidate(self) -> None: ...

    def close(self) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return getattr(self.memory, name)
