"""The follower thread: reads committed events of responses that run elsewhere, for their readers here.

It waits for a NOTIFY of another replica, a new reader or a time-out, and then reads the logs of watched
responses in one query. Notifications only make it faster: without them readers get the same.
"""

import logging
import selectors
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Literal, Protocol
from uuid import UUID

from server.delivery.hub import Hub, Published, SubscriptionKey
from server.delivery.stored_responses import read_update
from server.logs.context import response_fields
from server.store import log_read
from server.store.cluster import notifications
from server.store.cluster.notifications import Hints, Notifier
from server.store.cluster.watches import RENEW_SECONDS
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
LISTEN_SHARE, POLL_SHARE = 0.005, 0.1
"""The largest share of the thread's time for reading all logs, with notifications and without."""
MAX_POLL_SECONDS = 2.0
"""The longest time between two reads of all watched logs, however long one takes."""
FLEET_POLL_SECONDS = 0.1
"""The shortest one where others notify only of events after a silence."""
_RETRY_SECONDS = 0.5
_MAX_RETRY_SECONDS = 5.0


Hinted = Literal["everything", "after a silence", "nothing"]
"""The events of which other replicas notify."""


def pause_after(seconds: float, quiet: int, hinted: Hinted) -> float:
    """Seconds until the next read of all logs, after one that took `seconds`.

    `quiet` is how many reads have found nothing since the last events. Pure.
    """
    match hinted:
        case "everything":
            pause = seconds / LISTEN_SHARE
        case "nothing":
            pause = seconds / POLL_SHARE
        case "after a silence":
            pause = max(FLEET_POLL_SECONDS, seconds / POLL_SHARE) * 2 ** min(quiet, 5)
    return max(MIN_POLL_SECONDS, min(pause, MAX_POLL_SECONDS))


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

    def __init__(
        self, database: Database, hub: Hub, listener: HintListener, notifier: Notifier | None
    ) -> None:
        """Others are told by `notifier` what is followed here; without one the thread only polls."""
        self._database = database
        self._hub = hub
        self._listener = listener
        self._notifier = notifier
        self._announced: set[UUID] = set()
        self._announce_at = 0.0
        """When everything that is followed is announced again."""
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
            if self._notifier is not None:
                self._listen_if_possible(connection, self._notifier.replica)
            descriptor = notifications.socket_descriptor(connection)
            self._selector.register(descriptor, selectors.EVENT_READ)
            yield connection
        finally:
            if descriptor is not None:
                self._selector.unregister(descriptor)
            connection.invalidate()
            connection.close()

    def _listen_if_possible(self, connection: Connection, replica: UUID) -> None:
        try:
            notifications.listen(connection, replica)
        except TransientError:
            raise
        except DatabaseError as error:
            log.warning("this database knows no LISTEN, so it is asked instead: %s", type(error).__name__)

    def _follow(self, connection: Connection) -> None:
        """Reads all watched logs at first, because notifications may have been missed, and then
        periodically.

        Between these reads only the logs that were notified of or have new readers: so the cost of a
        notification does not depend on the number of watched responses.
        """
        due, pause, quiet = monotonic(), MIN_POLL_SECONDS, 0
        by_short_id: dict[str, SubscriptionKey] = {}
        unseen: set[SubscriptionKey] = set()
        hinted: set[str] = set()
        while not self.thread.stopping:
            began = monotonic()
            everything = began >= due
            unseen |= self._hub.take_new_subscriptions()
            if everything:
                watched = self._hub.subscriptions()
                by_short_id = {
                    notifications.short_id(one.response_id): (one.tenant, one.response_id) for one in watched
                }
            else:
                by_short_id.update(
                    (notifications.short_id(response), (tenant, response)) for tenant, response in unseen
                )
                notified = {by_short_id[name] for name in hinted & by_short_id.keys()}
                watched = self._hub.subscriptions(unseen | notified)
            here = {one.response_id for one in watched if self._listener.runs_here(one.response_id)}
            remote = [one for one in watched if one.response_id not in here]
            self._announce([one.response_id for one in remote], everything=everything)
            if remote:
                quiet = 0 if self._publish_updates(connection, remote) else quiet + everything
            self._failed = False
            self.thread.progress()
            unseen = {(one.tenant, one.response_id) for one in watched if one.response_id in here}
            if everything:
                pause = pause_after(monotonic() - began, quiet, self._hints)
                due = monotonic() + (pause if remote else IDLE_SECONDS)
            elif remote:
                if not quiet and self._hints == "after a silence":
                    pause = FLEET_POLL_SECONDS
                due = min(due, monotonic() + pause)
            hinted = self._await_wakeup(connection, by_short_id, due)

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

    def _announce(self, followed: Sequence[UUID], *, everything: bool) -> None:
        """Announces what is followed since the last call, and from time to time all of it."""
        if self._notifier is None:
            return
        if everything and (now := monotonic()) >= self._announce_at:
            self._announced, self._announce_at = set(), now + RENEW_SECONDS
        new = [response for response in followed if response not in self._announced]
        self._announced.update(new)
        self._notifier.watch(new)

    @property
    def _hints(self) -> Hinted:
        if self._notifier is None:
            return "nothing"
        return "everything" if self._notifier.names_all_events else "after a silence"

    def _await_wakeup(
        self, connection: Connection, by_short_id: Mapping[str, SubscriptionKey], due: float
    ) -> set[str]:
        """Waits for a notification of a watched response, a new reader, or `due`; returns the notified short
        ids.

        Other notifications are dispatched.
        """
        while True:
            hints = notifications.receive(connection)  # some may have come with the answer
            self._dispatch_hints(hints)
            left = due - monotonic()
            if left <= 0 or self._is_relevant(hints.events, by_short_id) or self._wait(left):
                return hints.events

    def _is_relevant(self, names: Collection[str], by_short_id: Mapping[str, SubscriptionKey]) -> bool:
        return any(
            name in by_short_id and not self._listener.runs_here(by_short_id[name][1]) for name in names
        )

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

    def _dispatch_hints(self, hints: Hints) -> None:
        if hints.queue:
            self._listener.on_queue_hint()
        if hints.cancels:
            self._listener.on_cancel_hint(hints.cancels)
        if self._notifier is not None:
            for replica, responses in hints.watches.items():
                self._notifier.add_watches(replica, responses, self._listener.runs_here)


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
