"""The keeper thread: this replica's heartbeat, the burial of silent ones, and a look at what it owns.

What it owns in the database and does not produce was lost on the way (a commit whose answer never came), so
it is handed back; what somebody asked to end elsewhere is cancelled.
"""

import logging
from collections.abc import Callable, Sequence
from time import monotonic
from uuid import UUID

from server.crashpoints import crashpoint
from server.delivery.abandonment import Abandonment
from server.recovery.heartbeat_watch import HeartbeatWatch
from server.store.cluster import claims, leases
from server.store.database import Connection, Database, DatabaseError
from server.supervised_thread import Retry, SupervisedThread

log = logging.getLogger("holdfast.keeper")


class Heartbeat:
    """Beats about once a second until `stop`."""

    def __init__(
        self,
        database: Database,
        replica: UUID,
        *,
        produces: Callable[[UUID], bool],
        cancel: Callable[[UUID], None],
        lease_seconds: float,
        reading: Callable[[], Sequence[UUID]],
        unread: Abandonment,
        on_unowned: Callable[[], None],
        on_fenced: Callable[[], None],
        on_others: Callable[[bool], None],
        on_database_gone: Callable[[], None],
        on_turn: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`produces` tells whether a response is being produced here; `cancel` ends one that is.

        `reading` gives the responses that run elsewhere and go on only while they are read here.
        `on_others` is told with every beat whether other replicas are alive. `on_fenced` is called when this
        process must end. `on_turn` is called after every turn, whether its beat could be written or not.
        """
        self._database = database
        self._replica = replica
        self._produces = produces
        self._cancel = cancel
        self._lease_seconds = lease_seconds
        self._reading = reading
        self._unread = unread
        self._on_unowned = on_unowned
        self._on_others = on_others
        self._on_database_gone = on_database_gone
        self._on_turn = on_turn
        self._clock = clock
        self._watch = HeartbeatWatch(lease_seconds)
        self.thread = SupervisedThread(
            "keeper",
            self._turn,
            fatal=(leases.Fenced,),
            on_fatal=on_fenced,
            retry=Retry(max_pause=leases.BEAT_SECONDS),
        )

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        self.thread.stop()

    def _turn(self) -> None:
        if self.thread.wait(leases.beat_seconds(self._lease_seconds)):
            return
        try:
            self.beat()
        except leases.Fenced:
            log.critical("this replica was declared dead: its heartbeat came too late")
            raise
        except DatabaseError as error:
            log.warning("heartbeat failed, trying again: %s", type(error).__name__)
            self._on_database_gone()
        finally:
            self._on_turn()

    def beat(self) -> None:
        """One round. Raises leases.Fenced when this replica was declared dead, or DatabaseError."""
        silent = self._watch.look(self._clock(), self._heartbeats())
        if silent:
            with self._database.begin() as connection:
                leases.expire_replicas(connection, silent, self._lease_seconds)
        with self._database.begin() as connection:
            unowned = leases.release_orphans(connection)
            if unowned:
                crashpoint("bury.written")
        if unowned:
            crashpoint("bury.committed")
        with self._database.begin() as connection:
            lost = self._hand_back_lost(connection)
            unwanted = claims.cancel_requested(connection, self._replica)
        for response in unwanted:
            self._cancel(response)
        if unowned or lost:
            self._on_unowned()

    def _heartbeats(self) -> dict[UUID, float]:
        """Those of the other replicas, after this one's own is committed."""
        try:
            with self._database.begin() as connection:
                leases.beat(connection, self._replica, self._reading())
                read = leases.read_elsewhere(connection, self._replica, self._unread.waiting())
                heartbeats = leases.heartbeats(connection, self._replica)
        except Exception:
            self._watch.failed()
            raise
        self._on_others(bool(heartbeats))
        self._unread.settle(read, alone=not heartbeats)
        return heartbeats

    def _hand_back_lost(self, connection: Connection) -> int:
        """How many responses were given up that this replica owned and does not produce.

        Nothing waits for one that is locked: the next heartbeat would come late by that. The next round tries
        it again.
        """
        lost = [place for place in claims.owned(connection, self._replica) if not self._produces(place.id)]
        handed_back = claims.hand_back(connection, self._replica, lost, skip_locked=True)
        if handed_back:
            log.warning("%d responses of this replica are not produced by it; handed back", handed_back)
        return handed_back
