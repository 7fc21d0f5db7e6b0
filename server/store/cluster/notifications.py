"""Hints between replicas over LISTEN and NOTIFY. A hint may be lost or repeated; the tables decide.

Of new events only the replicas are notified that follow the response, each on a channel of its own, so that a
replica's cost does not grow with what others generate. They announce what they follow (`watches.py`).

A transaction with NOTIFY holds a cluster-wide lock until its commit is on disk, so hints are never sent in a
transaction with data: one thread collects them and sends them on its own connection.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from uuid import UUID

from sqlalchemy import ARRAY, Connection, Text, bindparam, text

from server.store.cluster.watches import Watches
from server.store.database import ASYNCHRONOUS, Database
from server.store.database_errors import DatabaseError
from server.store.timeout_connection import REQUEST_TIMEOUTS, psycopg_connection
from server.supervised_thread import SupervisedThread

log = logging.getLogger("holdfast.notify")

EVENTS = "holdfast_events"
"""How a replica's own channel begins."""
QUEUE = "holdfast_queue"
CANCEL = "holdfast_cancel"
WATCH = "holdfast_watch"

HINT_DIGITS = 8
"""Hex digits of a response's short id, the last ones of its UUIDv7, which are random. A collision costs one
query."""
BATCH_SECONDS = 0.01
MOST_NOTIFIED = 8
"""Other replicas up to which all events are notified of. Each NOTIFY wakes the sessions of all replicas, some
50 microseconds each. So with more of them followers read the logs on their own, several times a second, and
are notified only of events after a silence."""
_RETRY_SECONDS = 1.0
_MAX_PAYLOAD = 7900
"""Bytes; a payload must be shorter than 8000 bytes."""


def short_id(response_id: UUID) -> str:
    """The short id of a response in hints."""
    return response_id.hex[-HINT_DIGITS:]


@dataclass(slots=True)
class Hints:
    """Hints that were received."""

    events: set[str] = field(default_factory=set)
    """Short ids of responses with new events."""
    queue: bool = False
    """There are unclaimed responses."""
    cancels: set[UUID] = field(default_factory=set)
    """Responses with a cancellation request."""
    watches: dict[UUID, set[UUID]] = field(default_factory=dict)
    """By replica: responses that it follows."""

    def parse(self, channel: str, payload: str) -> None:
        """Adds one notification. Any program can send on the channels, so malformed parts are ignored."""
        match channel:
            case "holdfast_queue":
                self.queue = True
            case "holdfast_cancel":
                self.cancels.update(_read_ids(payload))
            case "holdfast_watch":
                if ids := _read_ids(payload):
                    self.watches.setdefault(ids[0], set()).update(ids[1:])
            case _:
                self.events.update(_split_ids(payload, HINT_DIGITS))


@dataclass(slots=True)
class Outgoing:
    """Hints that are to be sent."""

    events: dict[UUID, set[str]] = field(default_factory=dict)
    """By replica that follows them: short ids of responses with new events."""
    queue: bool = False
    cancels: set[UUID] = field(default_factory=set)
    watches: set[UUID] = field(default_factory=set)
    """Responses that this replica follows."""

    def __bool__(self) -> bool:
        return bool(self.events or self.queue or self.cancels or self.watches)

    def add(self, other: "Outgoing") -> None:
        for replica, responses in other.events.items():
            self.events.setdefault(replica, set()).update(responses)
        self.queue |= other.queue
        self.cancels |= other.cancels
        self.watches |= other.watches

    def to_notifications(self, me: UUID) -> list[tuple[str, str]]:
        """The hints as pairs of channel and payload."""
        notifications = [
            (events_channel(replica), payload)
            for replica, responses in self.events.items()
            for payload in _join_ids(responses, HINT_DIGITS)
        ]
        notifications += [(CANCEL, payload) for payload in _join_ids((one.hex for one in self.cancels), 32)]
        notifications += [
            (WATCH, me.hex + payload) for payload in _join_ids((one.hex for one in self.watches), 32)
        ]
        return [*notifications, (QUEUE, "")] if self.queue else notifications


def events_channel(replica: UUID) -> str:
    """The channel of hints for one replica."""
    return f"{EVENTS}_{replica.hex}"


def _split_ids(payload: str, size: int) -> list[str]:
    return [payload[start : start + size] for start in range(0, len(payload), size)]


def _join_ids(names: Iterable[str], size: int) -> list[str]:
    names = list(names)
    most = _MAX_PAYLOAD // size
    return ["".join(names[start : start + most]) for start in range(0, len(names), most)]


def _read_ids(payload: str) -> list[UUID]:
    return [UUID(hex=name) for name in _split_ids(payload, 32) if _is_hex(name)]


def _is_hex(name: str) -> bool:
    return len(name) == 32 and all(digit in "0123456789abcdef" for digit in name)


def listen(connection: Connection, replica: UUID) -> None:
    """Subscribes to the channels of a replica. The connection must be in autocommit mode."""
    with connection.begin():
        for channel in (events_channel(replica), CANCEL, WATCH, QUEUE):
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


def notify(connection: Connection, notifications: Sequence[tuple[str, str]]) -> None:
    """Sends pairs of channel and payload. The connection must not be in a transaction."""
    parameters = {
        "channels": [channel for channel, _ in notifications],
        "payloads": [payload for _, payload in notifications],
    }
    with connection.begin():
        connection.execute(_NOTIFY, parameters)


class Notifier:
    """The thread that sends hints to other replicas. Callers never wait for it."""

    def __init__(
        self,
        database: Database,
        replica: UUID,
        *,
        enabled: bool = True,
        on_fatal: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Sends nothing unless `enabled`. `on_fatal` is called when the thread gives up."""
        self.replica = replica
        self.other_replicas = 1
        """How many replicas there are to notify; one until the first heartbeat has counted them."""
        self._database = database
        self._enabled = enabled
        self._clock = clock
        self._pending = Outgoing()
        self._watches = Watches()
        self._changed = threading.Condition()
        self._connection: Connection | None = None
        self._failed = False
        self.thread = SupervisedThread(
            "notifier", self._send_pending, on_fatal=on_fatal, on_end=self._disconnect
        )

    @property
    def names_all_events(self) -> bool:
        """Whether replicas are so few that each commit is notified of, here and by the others."""
        return self.other_replicas <= MOST_NOTIFIED

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        """Ends the thread and drops hints that were not sent."""
        self.thread.request_stop()
        with self._changed:
            self._changed.notify()
        self.thread.join()

    def set_other_replicas_alive(self, count: int) -> None:
        """Called by the heartbeat thread."""
        self.other_replicas = count

    def notify_events(self, responses: Iterable[UUID]) -> None:
        """Announces committed events of these responses to the replicas that follow them."""
        if not self._watches:
            return
        hints, now = Outgoing(), self._clock()
        with self._changed:
            for response in responses:
                followers = self._watches.followers(response, now)
                if followers and (self._watches.was_silent(response, now) or self.names_all_events):
                    for replica in followers:
                        hints.events.setdefault(replica, set()).add(short_id(response))
        self._enqueue(hints)

    def watch(self, responses: Iterable[UUID]) -> None:
        """Announces that this replica follows these responses."""
        self._enqueue(Outgoing(watches=set(responses)))

    def add_watches(
        self, replica: UUID, responses: Iterable[UUID], runs_here: Callable[[UUID], bool]
    ) -> None:
        """Another replica follows these responses. It is notified at once of new ones that run here.

        So it misses nothing that was committed after its own look at the log and before this was known.
        """
        if replica == self.replica:
            return
        with self._changed:
            new = self._watches.add(replica, responses, self._clock())
        if running := {short_id(response) for response in new if runs_here(response)}:
            self._enqueue(Outgoing({replica: running}))

    def follows(self, replica: UUID, response: UUID) -> bool:
        """Whether that replica is notified of that response's events."""
        with self._changed:
            return replica in self._watches.followers(response, self._clock())

    def notify_queue(self) -> None:
        """Announces committed responses that no replica has claimed."""
        self._enqueue(Outgoing(queue=True))

    def notify_cancel(self, response: UUID) -> None:
        """Announces a committed cancellation request."""
        self._enqueue(Outgoing(cancels={response}))

    def _enqueue(self, hints: Outgoing) -> None:
        if hints and self.other_replicas and self._enabled:
            with self._changed:
                self._pending.add(hints)
                self._changed.notify()

    def _send_pending(self) -> None:
        with self.thread.idle(), self._changed:
            self._changed.wait_for(lambda: self._pending or self.thread.stopping)
        if self.thread.wait(BATCH_SECONDS):
            return
        with self._changed:
            hints, self._pending = self._pending, Outgoing()
        if not self._send(hints):
            self._enqueue(hints)
            self.thread.wait(_RETRY_SECONDS)

    def _send(self, hints: Outgoing) -> bool:
        try:
            notify(self._connect(), hints.to_notifications(self.replica))
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
