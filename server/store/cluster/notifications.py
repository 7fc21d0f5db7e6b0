"""Hints between replicas over LISTEN and NOTIFY: there are queued responses, or some to cancel.

A hint may be lost or repeated; the tables decide. Events are not among them: a NOTIFY wakes the sessions of
all replicas, and readers of a response that runs elsewhere are few (`delivery/follower.py`).

A transaction with NOTIFY holds a cluster-wide lock until its commit is on disk, so hints are never sent in a
transaction with data: one thread collects them, and sends and receives on its own connection.
"""

import logging
import re
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from sqlalchemy import Connection, text

from server.store.database import ASYNCHRONOUS, Database
from server.store.database_errors import DatabaseError, TransientError
from server.store.driver_statements import psycopg_connection
from server.store.timeout_connection import REQUEST_TIMEOUTS
from server.supervised_thread import SupervisedThread, Worker

log = logging.getLogger("holdfast.notify")
QUEUE = "holdfast_queue"
CANCEL = "holdfast_cancel"
TURN_SECONDS = 0.05
"""The longest time for which hints to send are gathered, while none come."""
_RETRY_SECONDS = 1.0
_ID_DIGITS = 32
_ID = re.compile(r"[0-9a-f]{32}")
_IDS_PER_PAYLOAD = 7900 // _ID_DIGITS
"""A payload must be shorter than 8000 bytes."""


@dataclass(slots=True)
class Hints:
    """Hints that were received, or are to be sent."""

    queue: bool = False
    """There are unclaimed responses."""
    cancels: set[UUID] = field(default_factory=set)
    """Responses with a cancellation request."""

    def __bool__(self) -> bool:
        return self.queue or bool(self.cancels)

    def add(self, other: "Hints") -> None:
        self.queue |= other.queue
        self.cancels |= other.cancels

    def parse(self, channel: str, payload: str) -> None:
        """Adds one notification. Any program can send on the channels, so malformed parts are ignored."""
        if channel == QUEUE:
            self.queue = True
        else:
            names = [payload[at : at + _ID_DIGITS] for at in range(0, len(payload), _ID_DIGITS)]
            self.cancels.update(UUID(hex=name) for name in names if _ID.fullmatch(name))

    def to_notifications(self) -> list[tuple[str, str]]:
        """The hints as pairs of channel and payload."""
        names = [response.hex for response in self.cancels]
        payloads = [
            "".join(names[at : at + _IDS_PER_PAYLOAD]) for at in range(0, len(names), _IDS_PER_PAYLOAD)
        ]
        notifications = [(CANCEL, payload) for payload in payloads]
        return [*notifications, (QUEUE, "")] if self.queue else notifications


def listen(connection: Connection) -> None:
    """Subscribes to the channels. The connection must be in autocommit mode."""
    with connection.begin():
        for channel in (CANCEL, QUEUE):
            connection.execute(text(f"listen {channel}"))


def receive(connection: Connection, seconds: float = 0.0) -> Hints:
    """The hints since the last call; waits so long for the first. Raises DatabaseError if the connection is
    lost. Hints that came with a statement's answer are seen only without a wait, so that comes after one.
    """
    hints = Hints()
    with psycopg_connection(connection) as raw:
        if seconds and raw.has_no_input(seconds):
            return hints
        for notification in raw.notifies(timeout=0, stop_after=1):
            hints.parse(notification.channel, notification.payload)
    return hints


_NOTIFY = text("""
    select pg_notify(channel, payload)
    from unnest(cast(:channels as text[]), cast(:payloads as text[])) as n (channel, payload)
""")


def notify(connection: Connection, notifications: Sequence[tuple[str, str]]) -> None:
    """Sends pairs of channel and payload. The connection must not be in a transaction."""
    parameters = {
        "channels": [channel for channel, _ in notifications],
        "payloads": [payload for _, payload in notifications],
    }
    with connection.begin():
        connection.execute(_NOTIFY, parameters)


class HintListener(Protocol):
    """Takes hints of other replicas, on the notifier's thread."""

    def on_queue_hint(self) -> None:
        """There may be responses to claim."""

    def on_cancel_hint(self, responses: Collection[UUID]) -> None:
        """The owner of these responses has to cancel them."""

    def on_fenced(self) -> None:
        """The thread has given up, so this process must end."""


class Notifier(Worker):
    """The thread that exchanges hints with other replicas. Nobody waits for it."""

    def __init__(self, database: Database, listener: HintListener, *, enabled: bool = True) -> None:
        """Neither sends nor receives unless `enabled`."""
        self.other_replicas = 1
        """The number of replicas to notify; one until the first heartbeat has counted them."""
        self._database = database
        self._listener = listener
        self._enabled = enabled
        self._lock = threading.Lock()
        self._pending = Hints()
        self._connection: Connection | None = None
        self._failed = False
        self.thread = SupervisedThread(
            "notifier", self._turn, on_fatal=listener.on_fenced, on_end=self._disconnect
        )

    def start(self) -> None:
        if self._enabled:
            self.thread.start()

    def notify_queue(self) -> None:
        """Announces committed responses that no replica has claimed."""
        self._add(Hints(queue=True))

    def notify_cancel(self, response: UUID) -> None:
        """Announces a committed cancellation request."""
        self._add(Hints(cancels={response}))

    def _add(self, hints: Hints) -> None:
        if self.other_replicas and self._enabled:
            with self._lock:
                self._pending.add(hints)

    def _turn(self) -> None:
        try:
            connection = self._connect()
            with self.thread.idle():
                received = receive(connection, TURN_SECONDS)
            with self._lock:
                pending, self._pending = self._pending, Hints()
            if pending:
                try:
                    notify(connection, pending.to_notifications())
                except DatabaseError:
                    self._add(pending)
                    raise
                received.add(receive(connection))
        except DatabaseError as error:
            if not self._failed:
                log.warning("other replicas are given no hints: %s", type(error).__name__)
            self._failed = True
            self._disconnect()
            self.thread.wait(_RETRY_SECONDS)
            return
        self._failed = False
        if received.queue:
            self._listener.on_queue_hint()
        if received.cancels:
            self._listener.on_cancel_hint(received.cancels)

    def _connect(self) -> Connection:
        if self._connection is None:
            limits = {**REQUEST_TIMEOUTS, **ASYNCHRONOUS}
            self._connection = self._database.dedicated_connection("notifier", autocommit=True, limits=limits)
            try:
                listen(self._connection)
            except TransientError:
                raise
            except DatabaseError as error:
                log.warning("this database knows no LISTEN, so it is asked instead: %s", type(error).__name__)
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.invalidate()
            self._connection.close()
            self._connection = None
