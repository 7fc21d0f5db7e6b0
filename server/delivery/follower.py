"""The follower thread: reads committed events of responses that run elsewhere, for their readers here.

It reads the logs of all watched responses in one query, again and again with pauses, the first time when a
reader comes.
"""

import logging
from collections.abc import Callable, Sequence
from time import monotonic
from uuid import UUID

from server.delivery.hub import Hub, Published
from server.delivery.stored_responses import read_update
from server.logs.context import response_fields
from server.store import log_read
from server.store.database import Connection, Database
from server.store.database_errors import DatabaseError, classify_read, is_unavailable
from server.store.log_read import Subscription, SubscriptionUpdate
from server.supervised_thread import Retry, SupervisedThread, Worker

log = logging.getLogger("holdfast.follower")

MIN_POLL_SECONDS = 0.05
IDLE_SECONDS = 1.0
POLL_SHARE = 0.1
"""The largest share of the thread's time for reading all logs."""
QUIET_DOUBLINGS = 2
"""The number of times that the pause doubles while reads find nothing."""
MAX_POLL_SECONDS = 2.0
"""The longest time between two reads of all watched logs, however long one takes."""
_RETRY_SECONDS = 0.5
_MAX_RETRY_SECONDS = 5.0


def pause_after(seconds: float, quiet: int) -> float:
    """Seconds until the next read, after one that took `seconds` and `quiet` that found nothing. Pure."""
    pause = max(MIN_POLL_SECONDS, seconds / POLL_SHARE) * 2.0 ** min(quiet, QUIET_DOUBLINGS)
    return min(pause, MAX_POLL_SECONDS)


class Follower(Worker):
    """Publishes to the hub what other replicas commit for its watched responses."""

    def __init__(
        self,
        database: Database,
        hub: Hub,
        runs_here: Callable[[UUID], bool],
        on_fatal: Callable[[], None],
        *,
        pause: Callable[[float, int], float] = pause_after,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        """`runs_here`: this process runs a response, and so publishes its frames itself.

        `on_fatal` is called when the thread gives up. `pause` computes the pauses between two reads, and
        `idle_seconds` is the one while nobody waits for a response that runs elsewhere.
        """
        self._pause, self._idle_seconds = pause, idle_seconds
        self._database = database
        self._hub = hub
        self._runs_here = runs_here
        self._due = self._due_for_new_readers = monotonic()
        """When the logs are read next, and when if a reader comes."""
        self._quiet = 0
        self._failed = False
        self.thread = SupervisedThread(
            "follower", self._turn, on_fatal=on_fatal, retry=Retry(max_pause=_MAX_RETRY_SECONDS)
        )
        hub.on_new_reader = self.thread.wake

    # --- the follower thread ---

    def _turn(self) -> None:
        """Waits until the logs are due, which a new reader hastens, and reads them."""
        if self.thread.wait(max(0.0, self._due - monotonic())):
            return
        if monotonic() < self._due:
            self._due, self._quiet = min(self._due, self._due_for_new_readers), 0
        if monotonic() < self._due:
            return
        try:
            self._read()
            self._failed = False
        except DatabaseError as error:
            if not self._failed:
                log.warning("responses of other replicas stand still: %s", type(error).__name__)
            self._failed = True
            self._due = self._due_for_new_readers = monotonic() + _RETRY_SECONDS

    def _read(self) -> None:
        began = monotonic()
        subscriptions = self._hub.subscriptions()
        remote = [watched for watched in subscriptions if not self._runs_here(watched.response_id)]
        has_updates = bool(remote) and self._publish_updates(remote)
        self._quiet = 0 if has_updates else self._quiet + 1
        now = monotonic()
        self._due = now + (self._pause(now - began, self._quiet) if remote else self._idle_seconds)
        self._due_for_new_readers = now + (self._pause(now - began, 0) if remote else 0.0)

    def _publish_updates(self, watched: Sequence[Subscription]) -> bool:
        """Whether there were any. What Postgres cannot read of one response keeps no other one's readers."""
        try:
            return self._publish_together(watched)
        except DatabaseError as error:
            if is_unavailable(error):
                raise
        # The reads may have failed after the first of them were published.
        ids = {subscription.response_id for subscription in watched}
        has_updates = False
        for subscription in self._hub.subscriptions():
            if subscription.response_id in ids:
                has_updates |= self._publish_alone(subscription)
        return has_updates

    def _publish_together(self, watched: Sequence[Subscription]) -> bool:
        with self._database.begin() as connection:
            updates = log_read.read_updates(connection, watched)
            self._hub.publish(_to_published(connection, update) for update in updates)
        return bool(updates)

    def _publish_alone(self, watched: Subscription) -> bool:
        """`_publish_together` of one. If what is stored cannot be decoded, its readers are told that there is
        nothing more; if it took too long, it is tried again with the next read.
        """
        try:
            return self._publish_together([watched])
        except DatabaseError as error:
            if is_unavailable(error) or classify_read(error) == "environment":
                raise
            fields = response_fields(watched.response_id, watched.tenant)
            log.exception("the events of %s cannot be read", fields["response_id"], extra=fields)
            if classify_read(error) == "undecodable":
                self._hub.publish([_unreadable(watched)])
            return True


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
