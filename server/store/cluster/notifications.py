"""Hints between replicas over LISTEN and NOTIFY. The truth is in the tables: a hint may be lost, or double.

NOTIFY holds a lock of the whole cluster until its transaction is on disk, so hints never travel in a
transaction with data: one thread gathers them and sends them over a connection of its own.
"""

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from uuid import UUID

from sqlalchemy import ARRAY, Connection, Text, bindparam, text

from server.store.database import Database, DatabaseError, psycopg_connection
from server.supervised_thread import SupervisedThread

log = logging.getLogger("holdfast.notify")

EVENTS = "holdfast_events"
QUEUE = "holdfast_queue"
CANCEL = "holdfast_cancel"
CHANNELS = (EVENTS, QUEUE, CANCEL)

HINT_DIGITS = 8
"""Of an id's last, random ones: what a wrong match costs is one query."""
BATCH_SECONDS = 0.01
_RETRY_SECONDS = 1.0
_MAX_PAYLOAD = 7900
"""Bytes; Postgres refuses 8,000."""


def short_id(response_id: UUID) -> str:
    """A response's short name among hints."""
    return response_id.hex[-HINT_DIGITS:]


@dataclass(slots=True)
class Hints:
    """What was heard, or is to be said."""

    events: set[str] = field(default_factory=set)
    """Short names of responses that have new events."""
    queue: bool = False
    """There is work that nobody has."""
    cancels: set[UUID] = field(default_factory=set)
    """Responses that are to be cancelled by whoever runs them."""

    def __bool__(self) -> bool:
        return bool(self.events or self.queue or self.cancels)

    def add(self, other: "Hints") -> None:
        self.events |= other.events
        self.queue |= other.queue
        self.cancels |= other.cancels

    def read(self, channel: str, payload: str) -> None:
        """Adds one notification; anybody may send one, so what is not ours in it is passed over."""
        match channel:
            case "holdfast_events":
                self.events.update(_split_ids(payload, HINT_DIGITS))
            case "holdfast_queue":
                self.queue = True
            case "holdfast_cancel":
                self.cancels.update(UUID(hex=name) for name in _split_ids(payload, 32) if _is_hex(name))

    def written(self) -> list[tuple[str, str]]:
        """The notifications that say this."""
        said = [(EVENTS, payload) for payload in _join_ids(self.events, HINT_DIGITS)]
        said += [(CANCEL, payload) for payload in _join_ids((found.hex for found in self.cancels), 32)]
        return [*said, (QUEUE, "")] if self.queue else said


def _split_ids(payload: str, size: int) -> list[str]:
    return [payload[start : start + size] for start in range(0, len(payload), size)]


def _join_ids(names: Iterable[str], size: int) -> list[str]:
    names = list(names)
    most = _MAX_PAYLOAD // size
    return ["".join(names[start : start + most]) for start in range(0, len(names), most)]


def _is_hex(name: str) -> bool:
    return len(name) == 32 and all(digit in "0123456789abcdef" for digit in name)


def listen(connection: Connection) -> None:
    """Subscribes this connection, which must commit by itself."""
    for channel in CHANNELS:
        connection.execute(text(f"listen {channel}"))


def receive(connection: Connection) -> Hints:
    """What came in since the last call, without waiting. Raises DatabaseError once the connection is lost."""
    hints = Hints()
    with psycopg_connection(connection) as raw:
        for notification in raw.notifies(timeout=0):
            hints.read(notification.channel, notification.payload)
    return hints


def socket_descriptor(connection: Connection) -> int:
    """The file descriptor that is readable once there may be something to hear."""
    with psycopg_connection(connection) as raw:
        return raw.fileno()


_NOTIFY = text("select pg_notify(channel, payload) from unnest(:channels, :payloads) as n (channel, payload)")
_NOTIFY = _NOTIFY.bindparams(
    bindparam("channels", type_=ARRAY(Text)), bindparam("payloads", type_=ARRAY(Text))
)


def notify(connection: Connection, hints: Hints) -> None:
    """Sends the hints to everybody who listens. The connection must commit by itself."""
    said = hints.written()
    connection.execute(
        _NOTIFY, {"channels": [channel for channel, _ in said], "payloads": [payload for _, payload in said]}
    )


class Notifier:
    """The thread that tells other replicas; whoever has something to tell never waits for it."""

    def __init__(
        self, database: Database, *, muted: bool = False, on_fatal: Callable[[], None] = lambda: None
    ) -> None:
        """One that is `muted` says nothing: nobody listens. `on_fatal` is called when the thread gives up."""
        self.others_alive = True
        """Whether anybody is there to be told."""
        self._database = database
        self._muted = muted
        self._pending = Hints()
        self._changed = threading.Condition()
        self._connection: Connection | None = None
        self._failed = False
        self.thread = SupervisedThread("notifier", self._turn, on_fatal=on_fatal, on_end=self._disconnect)

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        """Ends the thread; what it had not said yet is not said."""
        self.thread.request_stop()
        with self._changed:
            self._changed.notify()
        self.thread.join()

    def set_others_alive(self, alive: bool) -> None:
        """The keeper's thread, which knows."""
        self.others_alive = alive

    def events(self, responses: Iterable[UUID]) -> None:
        """These have new events, which are committed."""
        self._tell(Hints(events={short_id(response) for response in responses}))

    def queue(self) -> None:
        """There is committed work that nobody has."""
        self._tell(Hints(queue=True))

    def cancel(self, response: UUID) -> None:
        """Whoever runs it must end it; that it is to end is committed."""
        self._tell(Hints(cancels={response}))

    def _tell(self, hints: Hints) -> None:
        if hints and self.others_alive and not self._muted:
            with self._changed:
                self._pending.add(hints)
                self._changed.notify()

    def _turn(self) -> None:
        with self.thread.idle(), self._changed:
            self._changed.wait_for(lambda: self._pending or self.thread.stopping)
        if self.thread.wait(BATCH_SECONDS):
            return
        with self._changed:
            hints, self._pending = self._pending, Hints()
        if not self._said(hints):
            self._tell(hints)
            self.thread.wait(_RETRY_SECONDS)

    def _said(self, hints: Hints) -> bool:
        try:
            notify(self._connect(), hints)
        except DatabaseError as error:
            if not self._failed:
                log.warning("other replicas are not told of events until they look: %s", type(error).__name__)
            self._failed = True
            self._disconnect()
            return False
        self._failed = False
        return True

    def _connect(self) -> Connection:
        if self._connection is None:
            self._connection = self._database.dedicate("notifier", autocommit=True)
            self._connection.execute(text("set synchronous_commit = off"))
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.invalidate()
            self._connection.close()
            self._connection = None
