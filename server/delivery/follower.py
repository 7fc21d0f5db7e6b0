"""The follower thread: brings events of responses that run elsewhere to their readers here.

It waits for hints of other replicas, for a reader that comes, or for a moment, and then looks into the log
once for all watched responses. Hints only make it faster: without any of them readers get the same.
"""

import logging
import selectors
import socket
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from time import monotonic
from uuid import UUID

from server.delivery.event_frames import frames
from server.delivery.function_names import with_function_names
from server.delivery.hub import TAIL_FRAMES, Hub, Place, Published
from server.delivery.stored_responses import read_end
from server.store.cluster import notifications
from server.store.cluster.notifications import Hints
from server.store.database import Connection, Database, DatabaseError, TransientError
from server.store.log import events
from server.store.log.events import SubscriptionUpdate
from server.supervised_thread import Retry, SupervisedThread

log = logging.getLogger("holdfast.follower")

WATCHING_SECONDS = 0.05
"""How long a hint may be missing before readers notice."""
IDLE_SECONDS = 1.0
SHARE_LISTENING, SHARE_ASKING = 0.005, 0.1
"""The most of its time that the thread may spend looking at everything, with hints and without."""
MOST_SECONDS = 2.0
"""How long it looks at nothing but hints at the most, however much there is to look at."""
_RETRY_SECONDS = 0.5
_LONGEST_RETRY_SECONDS = 5.0


class Follower:
    """Follows what the hub watches, until `stop`."""

    def __init__(
        self,
        database: Database,
        hub: Hub,
        *,
        is_here: Callable[[UUID], bool],
        on_queue: Callable[[], None],
        on_cancel: Callable[[Collection[UUID]], None],
        listen: bool,
        on_fatal: Callable[[], None] = lambda: None,
    ) -> None:
        """`is_here` says whether this process runs a response, and so tells the hub of it itself.

        `on_queue` is called when there may be work that nobody has, `on_cancel` with responses that are to be
        cancelled by whoever runs them; both on the follower's thread. Without `listen` there are no hints.
        `on_fatal` is called when the thread gives up.
        """
        self._database = database
        self._hub = hub
        self._is_here = is_here
        self._on_queue = on_queue
        self._on_cancel = on_cancel
        self._listen = listen
        self._failed = False
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self.thread = SupervisedThread(
            "follower", self._turn, on_fatal=on_fatal, retry=Retry(longest_pause=_LONGEST_RETRY_SECONDS)
        )
        hub.on_watch = self.wake

    def start(self) -> None:
        self.thread.start()

    def wake(self) -> None:
        """Has it look at once. Any thread; never waits."""
        with suppress(OSError):  # full: it is about to look; closed: it has ended
            self._waker.send(b"\0")

    def stop(self) -> None:
        self.thread.request_stop()
        self.wake()
        self.thread.join()
        self._selector.close()
        self._woken.close()
        self._waker.close()

    # --- the follower thread ---

    def _turn(self) -> None:
        """Follows over one connection until it is lost."""
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
            if self._listen:
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
        """Looks at everything at first, for hints may have been missed, and then from time to time.

        In between only at what is hinted at, and at what nobody has looked at yet: however many responses
        are watched, a hint costs no more than those that it names.
        """
        due, pause = monotonic(), WATCHING_SECONDS
        named: dict[str, Place] = {}
        unseen: set[Place] = set()
        hinted: set[str] = set()
        while not self.thread.stopping:
            began = monotonic()
            everything = began >= due
            unseen |= self._hub.joined()
            if everything:
                watched = self._hub.watched()
                named = {
                    notifications.short_id(one.response_id): (one.tenant, one.response_id) for one in watched
                }
            else:
                named.update(
                    (notifications.short_id(response), (tenant, response)) for tenant, response in unseen
                )
                watched = self._hub.watched(unseen.union(named[name] for name in hinted & named.keys()))
            here = {one.response_id for one in watched if self._is_here(one.response_id)}
            chosen = [one for one in watched if one.response_id not in here]
            if chosen:
                self._hub.publish(
                    self._told(connection, news) for news in events.read_updates(connection, chosen)
                )
            self._failed = False
            self.thread.progress()
            unseen = {(one.tenant, one.response_id) for one in watched if one.response_id in here}
            if everything:
                pause = self._pause_after(monotonic() - began)
                due = monotonic() + (pause if chosen else IDLE_SECONDS)
            elif chosen:
                due = min(due, monotonic() + pause)
            hinted = self._await_reason(connection, named, due)

    def _pause_after(self, seconds: float) -> float:
        """Until the next look at everything, if the last one took so long."""
        share = SHARE_LISTENING if self._listen else SHARE_ASKING
        return max(WATCHING_SECONDS, min(seconds / share, MOST_SECONDS))

    def _await_reason(self, connection: Connection, named: Mapping[str, Place], due: float) -> set[str]:
        """Until a watched response is hinted at, a reader comes, or time is up; hands on other hints."""
        while True:
            hints = notifications.receive(connection)  # first, for some may have come with the query's answer
            self._hand_on(hints)
            left = due - monotonic()
            if left <= 0 or self._is_awaited(hints.events, named) or self._wait(left):
                return hints.events

    def _is_awaited(self, names: Collection[str], named: Mapping[str, Place]) -> bool:
        return any(name in named and not self._is_here(named[name][1]) for name in names)

    def _wait(self, seconds: float) -> bool:
        """Until it is woken, which is True, the database says something, or so long."""
        woken = False
        with self.thread.idle():
            ready = self._selector.select(seconds)
        for key, _ in ready:
            if key.fileobj is self._woken:
                self._woken.recv(4096)
                woken = True
        return woken

    def _hand_on(self, hints: Hints) -> None:
        if hints.queue:
            self._on_queue()
        if hints.cancels:
            self._on_cancel(hints.cancels)

    def _told(self, connection: Connection, news: SubscriptionUpdate) -> Published:
        """What there is to tell; of a response that cannot be read, that there is nothing more."""
        response, position = news.subscription.response_id, news.subscription.next_seq or 0
        try:
            if news.state == "ended":
                return read_end(connection, news)
            if news.state == "running":
                return _running(connection, news)
        except DatabaseError:
            raise
        except Exception:
            log.exception("response %s cannot be followed", response)
        return Published(response, position, (), None, gone=True)


def _running(connection: Connection, news: SubscriptionUpdate) -> Published:
    tenant, response = news.subscription.tenant, news.subscription.response_id
    found = news.events[-TAIL_FRAMES:]
    first = found[0].sequence_number if found else news.end
    named = with_function_names(found, lambda: events.read(connection, tenant, response, 0))
    return Published(response, first, frames(response, named), None)
