"""The follower thread: reads committed events of responses that run elsewhere, for their readers here.

It reads the logs of all watched responses in one query, again and again with pauses; that of a response with
a new reader at once. On its connection it also receives the hints of other replicas.
"""

import logging
import selectors
import socket
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Protocol
from uuid import UUID

from server.delivery.hub import Hub, Published
from server.delivery.stored_responses import read_update
from server.logs.context import response_fields
from server.store import log_read
from server.store.cluster import notifications
from server.store.database import Connection, Database
from server.store.database_errors import (
    DatabaseError,
    TransientError,
    classify_read,
    is_unavailable,
)
from server.store.log_read import Subscription, SubscriptionUpdate
from server.supervised_thread import Retry, SupervisedThread

log = logging.getLogger("holdfast.follower")

MIN_POLL_SECONDS = 0.05
"""The shortest time between two reads of all watched logs."""
IDLE_SECONDS = 1.0
POLL_SHARE = 0.1
"""The largest share of the thread's time for reading all logs."""
QUIET_DOUBLINGS = 2
"""How often the pause doubles while reads find nothing."""
MAX_POLL_SECONDS = 2.0
"""The longest time between two reads of all watched logs, however long one takes."""
_RETRY_SECONDS = 0.5
_MAX_RETRY_SECONDS = 5.0


def pause_after(seconds: float, quiet: int) -> float:
    """Seconds until the next read of all logs, after one that took `seconds`.

    `quiet` is how many reads in a row have found nothing. Pure.
    """
    pause = max(MIN_POLL_SECONDS, seconds / POLL_SHARE) * 2.0 ** min(quiet, QUIET_DOUBLINGS)
    return min(pause, MAX_POLL_SECONDS)


class HintListener(Protocol):
    """What other replicas tell, on the follower's thread, and which responses are none of its business."""

    def runs_here(self, response: UUID) -> bool:
        """Whether this process runs the response, and so publishes its frames itself."""

    def on_queue_hint(self) -> None:
        """There may be responses to claim."""

    def on_cancel_hint(self, responses: Collection[UUID]) -> None:
        """The owner of these responses has to cancel them."""

    def on_fenced(self) -> None:
        """The thread has given up, so this process must end."""


class Follower:
    """Publishes to the hub what other replicas commit for its watched responses."""

    def __init__(self, database: Database, hub: Hub, listener: HintListener, *, listens: bool) -> None:
        """Hints are received if it `listens`."""
        self._database = database
        self._hub = hub
        self._listener = listener
        self._listens = listens
        self._failed = False
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_receiver.setblocking(False)
        self._wake_sender.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_receiver, selectors.EVENT_READ)
        self.thread = SupervisedThread(
            "follower", self._turn, on_fatal=listener.on_fenced, retry=Retry(max_pause=_MAX_RETRY_SECONDS)
        )
        hub.on_new_reader = self.wake

    def start(self) -> None:
        self.thread.start()

    def wake(self) -> None:
        """Ends the current wait. Any thread; never waits."""
        with suppress(OSError):  # full: it wakes up anyway; closed: it has ended
            self._wake_sender.send(b"\0")

    def stop(self) -> None:
        self.thread.request_stop()
        self.wake()
        self.thread.join()
        self._selector.close()
        self._wake_receiver.close()
        self._wake_sender.close()

    # --- the follower thread ---

    def _turn(self) -> None:
        """Follows over one connection until that is lost."""
        try:
            with self._connected() as connection:
                self._follow(connection)
        except DatabaseError as error:
            if not self._failed:
                log.warning("responses of other replicas stand still: %s", type(error).__name__)
            self._failed = True
            self._wait(_RETRY_SECONDS)

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        connection = self._database.dedicated_connection("follower", autocommit=True)
        descriptor = None
        try:
            if self._listens:
                self._listen_if_possible(connection)
            descriptor = notifications.socket_descriptor(connection)
            self._selector.register(descriptor, selectors.EVENT_READ)
            yield connection
        finally:
            if descriptor is not None:
                self._selector.unregister(descriptor)
            connection.invalidate()
            connection.close()

    def _listen_if_possible(self, connection: Connection) -> None:
        try:
            notifications.listen(connection)
        except TransientError:
            raise
        except DatabaseError as error:
            log.warning("this database knows no LISTEN, so it is asked instead: %s", type(error).__name__)

    def _follow(self, connection: Connection) -> None:
        """Reads all watched logs from time to time, and between that those with new readers."""
        due, quiet = monotonic(), 0
        while not self.thread.stopping:
            began = monotonic()
            everything, new = began >= due, self._hub.take_new_subscriptions()
            watched = self._hub.subscriptions(None if everything else new)
            remote = [one for one in watched if not self._listener.runs_here(one.response_id)]
            has_updates = bool(remote) and self._publish_updates(connection, remote)
            self._failed = False
            self.thread.progress()
            if everything:
                quiet = 0 if has_updates else quiet + 1
                pause = pause_after(monotonic() - began, quiet)
                due = monotonic() + (pause if remote else IDLE_SECONDS)
            elif remote:
                quiet, due = 0, min(due, monotonic() + MIN_POLL_SECONDS)
            self._await_wakeup(connection, due)

    def _publish_updates(self, connection: Connection, watched: Sequence[Subscription]) -> bool:
        """Whether there were any. What Postgres cannot read of one response keeps no other one's readers."""
        try:
            return self._publish_together(connection, watched)
        except DatabaseError as error:
            if is_unavailable(error):
                raise
        # The reads may have failed after the first of them were published.
        found = False
        for one in self._hub.subscriptions({(one.tenant, one.response_id) for one in watched}):
            found |= self._publish_alone(connection, one)
        return found

    def _publish_together(self, connection: Connection, watched: Sequence[Subscription]) -> bool:
        with connection.begin():
            updates = log_read.read_updates(connection, watched)
            self._hub.publish(_to_published(connection, update) for update in updates)
        return bool(updates)

    def _publish_alone(self, connection: Connection, watched: Subscription) -> bool:
        """`_publish_together` of one. If what is stored cannot be decoded, its readers are told that there is
        nothing more; if it took too long, it is tried again with the next read.
        """
        try:
            return self._publish_together(connection, [watched])
        except DatabaseError as error:
            if is_unavailable(error) or classify_read(error) == "environment":
                raise
            fields = response_fields(watched.response_id, watched.tenant)
            log.exception("the events of %s cannot be read", fields["response_id"], extra=fields)
            if classify_read(error) == "undecodable":
                self._hub.publish([_unreadable(watched)])
            return True

    def _await_wakeup(self, connection: Connection, due: float) -> None:
        """Waits for a new reader, or until `due`; hands on the hints that come meanwhile."""
        while True:
            hints = notifications.receive(connection)  # some may have come with an answer
            if hints.queue:
                self._listener.on_queue_hint()
            if hints.cancels:
                self._listener.on_cancel_hint(hints.cancels)
            left = due - monotonic()
            if left <= 0 or self._wait(left):
                return

    def _wait(self, seconds: float) -> bool:
        """Waits for `wake`, input from the database, or so many seconds; returns whether it was `wake`."""
        woken = False
        with self.thread.idle():
            ready = self._selector.select(seconds)
        for key, _ in ready:
            if key.fileobj is self._wake_receiver:
                self._wake_receiver.recv(4096)
                woken = True
        return woken


def _to_published(connection: Connection, update: SubscriptionUpdate) -> Published:
    """The new frames; for a response that cannot be read, that there is nothing more."""
    try:
        if update.state in ("ended", "running"):
            return read_update(connection, update)
    except DatabaseError:
        raise
    except Exception:
        fields = response_fields(update.subscription.response_id, update.subscription.tenant)
        log.exception("%s cannot be followed", fields["response_id"], extra=fields)
    return _unreadable(update.subscription)


def _unreadable(watched: Subscription) -> Published:
    return Published(watched.response_id, watched.next_seq or 0, (), None, gone=True)
