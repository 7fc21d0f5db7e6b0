"""Hints between replicas over LISTEN and NOTIFY. A hint may be lost or repeated; the tables decide.

A transaction with NOTIFY holds a cluster-wide lock until its commit is on disk, so hints are never sent in a
transaction with data: one thread collects them and sends them on its own connection.
"""

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from uuid import UUID

from sqlalchemy import ARRAY, Connection, Text, bindparam, text

from server.store.database import ASYNCHRONOUS, Database
from server.store.database_errors import DatabaseError
from server.store.timeout_connection import REQUEST_TIMEOUTS, psycopg_connection
from server.supervised_thread import SupervisedThread

log = logging.getLogger("holdfast.notify")

EVENTS = "holdfast_events"
QUEUE = "holdfast_queue"
CANCEL = "holdfast_cancel"
CHANNELS = (EVENTS, QUEUE, CANCEL)

HINT_DIGITS = 8
"""Hex digits of a response's short id, the last ones of its UUIDv7, which are random. A collision costs one
query."""
BATCH_SECONDS = 0.01
_RETRY_SECONDS = 1.0
_MAX_PAYLOAD = 7900
"""Bytes; a payload must be shorter than 8000 bytes."""


def short_id(response_id: UUID) -> str:
    """The short id of a response in hints."""
    return response_id.hex[-HINT_DIGITS:]


@dataclass(slots=True)
class Hints:
    """Hints that were received or are to be sent."""

    events: set[str] = field(default_factory=set)
    """Short ids of responses with new events."""
    queue: bool = False
    """There are unclaimed responses."""
    cancels: set[UUID] = field(default_factory=set)
    """Responses with a cancellation request."""

    def __bool__(self) -> bool:
        return bool(self.events or self.queue or self.cancels)

    def add(self, other: "Hints") -> None:
        self.events |= other.events
        self.queue |= other.queue
        self.cancels |= other.cancels

    def parse(self, channel: str, payload: str) -> None:
        """Adds one notification. Any program can send on the channels, so malformed parts are ignored."""
        match channel:
            case "holdfast_events":
                self.events.update(_split_ids(payload, HINT_DIGITS))
            case "holdfast_queue":
                self.queue = True
            case "holdfast_cancel":
                self.cancels.update(UUID(hex=name) for name in _split_ids(payload, 32) if _is_hex(name))

    def to_notifications(self) -> list[tuple[str, str]]:
        """The hints as pairs of channel and payload."""
        notifications = [(EVENTS, payload) for payload in _join_ids(self.events, HINT_DIGITS)]
        notifications += [
            (CANCEL, payload) for payload in _join_ids((found.hex for found in self.cancels), 32)
        ]
        return [*notifications, (QUEUE, "")] if self.queue else notifications


def _split_ids(payload: str, size: int) -> list[str]:
    return [payload[start : start + size] for start in range(0, len(payload), size)]


def _join_ids(names: Iterable[str], size: int) -> list[str]:
    names = list(names)
    most = _MAX_PAYLOAD // size
    return ["".join(names[start : start + most]) for start in range(0, len(names), most)]


def _is_hex(name: str) -> bool:
    return len(name) == 32 and all(digit in "0123456789abcdef" for digit in name)


def listen(connection: Connection) -> None:
    """Subscribes to the channels. The connection must be in autocommit mode."""
    with connection.begin():
        for channel in CHANNELS:
            connection.execute(text(f"listen {channel}"))


def receive(connection: Connection) -> Hints:
    """The hints since the last call, without waiting. Raises DatabaseError if the connection is lost."""
    hints = Hints()
    with psycopg_connection(connection) as raw:
        for notification in raw.notifies(timeout=0):
            hints.parse(notification.channel, notification.payload)
    return hints


def socket_descriptor(connection: Connection) -> int:
    """The file descriptor that becomes readable when a notification arrives."""
    with psycopg_connection(connection) as raw:
        return raw.fileno()


_NOTIFY = text("select pg_notify(channel, payload) from unnest(:channels, :payloads) as n (channel, payload)")
_NOTIFY = _NOTIFY.bindparams(
    bindparam("channels", type_=ARRAY(Text)), bindparam("payloads", type_=ARRAY(Text))
)


def notify(connection: Connection, hints: Hints) -> None:
    """Sends the hints to all listeners. The connection must not be in a transaction."""
    notifications = hints.to_notifications()
    parameters = {
        "channels": [channel for channel, _ in notifications],
        "payloads": [payload for _, payload in notifications],
    }
    with connection.begin():
        connection.execute(_NOTIFY, parameters)


class Notifier:
    """The thread that sends hints to other replicas. Callers never wait for it."""

    def __init__(
        self, database: Database, *, enabled: bool = True, on_fatal: Callable[[], None] = lambda: None
    ) -> None:
        """Sends nothing unless `enabled`. `on_fatal` is called when the thread gives up."""
        self.other_replicas_alive = True
        """Whether there are replicas to notify."""
        self._database = database
        self._enabled = enabled
        self._pending = Hints()
        self._changed = threading.Condition()
        self._connection: Connection | None = None
        self._failed = False
        self.thread = SupervisedThread(
            "notifier", self._send_pending, on_fatal=on_fatal, on_end=self._disconnect
        )

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        """Ends the thread and drops hints that were not sent."""
        self.thread.request_stop()
        with self._changed:
            self._changed.notify()
        self.thread.join()

    def set_other_replicas_alive(self, alive: bool) -> None:
        """Called by the heartbeat thread."""
        self.other_replicas_alive = alive

    def notify_events(self, responses: Iterable[UUID]) -> None:
        """Announces committed events of these responses."""
        self._enqueue(Hints(events={short_id(response) for response in responses}))

    def notify_queue(self) -> None:
        """Announces committed responses that no replica has claimed."""
        self._enqueue(Hints(queue=True))

    def notify_cancel(self, response: UUID) -> None:
        """Announces a committed cancellation request."""
        self._enqueue(Hints(cancels={response}))

    def _enqueue(self, hints: Hints) -> None:
        if hints and self.other_replicas_alive and self._enabled:
            with self._changed:
                self._pending.add(hints)
                self._changed.notify()

    def _send_pending(self) -> None:
        with self.thread.idle(), self._changed:
            self._changed.wait_for(lambda: self._pending or self.thread.stopping)
        if self.thread.wait(BATCH_SECONDS):
            return
        with self._changed:
            hints, self._pending = self._pending, Hints()
        if not self._send(hints):
            self._enqueue(hints)
            self.thread.wait(_RETRY_SECONDS)

    def _send(self, hints: Hints) -> bool:
        try:
            notify(self._connect(), hints)
        except DatabaseError as error:
            if not self._failed:
                log.warning("other replicas are not notified of events: %s", type(error).__name__)
            self._failed = True
            self._disconnect()
            return False
        self._failed = False
        return True

    def _connect(self) -> Connection:
        if self._connection is None:
            limits = {**REQUEST_TIMEOUTS, **ASYNCHRONOUS}
            self._connection = self._database.dedicated_connection("notifier", autocommit=True, limits=limits)
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.invalidate()
            self._connection.close()
            self._connection = None
