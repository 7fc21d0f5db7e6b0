"""The heartbeat thread: renews this replica's lease, expires silent replicas, reconciles owned responses.

A response that this replica owns in the database but does not run was lost (a commit whose answer never
came): it is released. A response with a cancel request is cancelled.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from uuid import UUID

from server.crashpoints import crashpoint
from server.delivery.hub import Abandonment
from server.protocol.responses.response import CancelReason
from server.store.cluster import claims, leases
from server.store.content.responses import ResponseKey
from server.store.database import Connection, Database
from server.store.database_errors import DatabaseError
from server.supervised_thread import Retry, SupervisedThread

log = logging.getLogger("holdfast.heartbeat")

ORPHAN_BEATS = 5
"""Every so many beats a replica looks for responses of others that are gone, even if an older one should."""
MOST_LEASES_WITHOUT_STORING = 3
"""For so many leases a replica renews its lease although nothing that it records is stored."""
_OBSERVATIONS_PER_LEASE = 4
"""A gap between two observations counts for at most this part of a lease, so that a replica has had several
turns to beat before it is declared dead."""


class Heartbeat:
    """Beats about once a second, several times within a lease."""

    def __init__(
        self,
        database: Database,
        replica: UUID,
        *,
        produces: Callable[[UUID], bool],
        cancel: Callable[[UUID, CancelReason | None], None],
        lease_seconds: float,
        read_here: Callable[[], Sequence[UUID]],
        abandonment: Abandonment,
        on_claimable: Callable[[], None],
        on_fenced: Callable[[], None],
        on_other_replicas: Callable[[int], None],
        on_database_gone: Callable[[], None],
        on_beat_done: Callable[[], None] = lambda: None,
        on_database_here: Callable[[], None] = lambda: None,
        on_first: Callable[[bool], None] = lambda _is_first: None,
        stores: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`produces` returns whether a response runs here; `cancel` ends one that does.

        `read_here` returns foreground responses that run elsewhere and have readers here. `abandonment` gets
        those that run here and have readers elsewhere. `on_claimable` is called when responses were
        released, `on_other_replicas` with every beat and how many other replicas are alive, `on_first` with
        every beat and whether this is the oldest of them, which does at every beat what one replica can do
        for all, `on_fenced` when this process must end, and `on_beat_done` after every turn, also after a
        failed one. `on_database_here` ends every beat that did not fail; it may raise DatabaseError. `stores`
        returns whether what this replica records is stored, or it records nothing.
        """
        self._database = database
        self._replica = replica
        self._produces = produces
        self._cancel = cancel
        self._lease_seconds = lease_seconds
        self._read_here = read_here
        self._abandonment = abandonment
        self._on_claimable = on_claimable
        self._on_other_replicas = on_other_replicas
        self._on_database_gone = on_database_gone
        self._on_beat_done = on_beat_done
        self._on_database_here = on_database_here
        self._on_first = on_first
        self._stores = stores
        self._storing = StoringWatch(lease_seconds)
        self._beats = 0
        self._clock = clock
        self._watch = HeartbeatWatch(lease_seconds)
        self._beat_at = clock()
        self.declared_dead = 0
        """Replicas that this one has declared dead."""
        self.thread = SupervisedThread(
            "heartbeat",
            self._turn,
            fatal=(leases.Fenced,),
            on_fatal=on_fenced,
            retry=Retry(max_pause=leases.HEARTBEAT_SECONDS),
        )

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        self.thread.stop()

    @property
    def age(self) -> float:
        """Seconds since this replica's last heartbeat was committed, or since it started. Any thread."""
        return self._clock() - self._beat_at

    def _turn(self) -> None:
        if self.thread.wait(leases.heartbeat_interval(self._lease_seconds)):
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
            self._on_beat_done()

    def beat(self) -> None:
        """One turn. Raises leases.Fenced if this replica was declared dead, or DatabaseError."""
        stores = self._stores()
        if not self._storing.may_beat(self._clock(), stores=stores):
            log.error(
                "this replica could store nothing for %d leases: others may take its work",
                MOST_LEASES_WITHOUT_STORING,
            )
            self._watch.failed()
            return
        heartbeats = self._heartbeats()
        if not stores:  # the others may be in the same trouble, and their silence no death
            self._watch.failed()
        silent = self._watch.observe(self._clock(), heartbeats)
        if silent:
            with self._database.begin() as connection:
                expired = leases.expire_replicas(connection, silent, self._lease_seconds)
            self.declared_dead += expired
        is_first = all(self._replica < other for other in heartbeats)
        self._on_first(is_first)
        looks = bool(silent) or is_first or self._beats % ORPHAN_BEATS == 0
        self._beats += 1
        orphans = self._release_orphans() if looks else {}
        owned, cancelled = self._database.autocommit(self._read_owned)
        lost = self._release_lost(owned)
        for response, reason in cancelled:
            self._cancel(response, reason)
        if orphans or lost:
            self._on_claimable()
        self._on_database_here()

    def _release_orphans(self) -> dict[UUID, int]:
        with self._database.begin() as connection:
            orphans = leases.release_orphans(connection)
            if orphans:
                crashpoint("orphans.written")
        if orphans:
            crashpoint("orphans.committed")
        for replica, count in orphans.items():
            log.warning("released %d unfinished responses of replica %s, which is gone", count, replica)
        return orphans

    def _read_owned(
        self, connection: Connection
    ) -> tuple[list[ResponseKey], list[tuple[UUID, CancelReason | None]]]:
        """The responses that this replica owns, and those of them that are to be cancelled."""
        return claims.owned_responses(connection, self._replica), claims.cancel_requested(
            connection, self._replica
        )

    def _heartbeats(self) -> dict[UUID, leases.HeartbeatTime]:
        """Commits this replica's heartbeat; returns the other replicas'."""
        try:
            with self._database.begin() as connection:
                leases.write_heartbeat(connection, self._replica, self._read_here())
                read = leases.remotely_read(connection, self._replica, self._abandonment.pending())
                heartbeats = leases.other_heartbeats(connection, self._replica)
        except Exception:
            self._watch.failed()
            raise
        self._beat_at = self._clock()
        self._on_other_replicas(len(heartbeats))
        self._abandonment.settle(read, alone=not heartbeats)
        return heartbeats

    def _release_lost(self, owned: Sequence[ResponseKey]) -> int:
        """Releases those that this replica does not run; returns how many.

        Skips locked rows, because waiting for a lock would delay the next heartbeat. The next turn tries
        them again.
        """
        lost = [key for key in owned if not self._produces(key.id)]
        if not lost:
            return 0
        with self._database.begin() as connection:
            released = claims.release(connection, self._replica, lost, skip_locked=True)
        if released:
            log.warning("%d responses of this replica are not produced by it; released", released)
        return released


class StoringWatch:
    """Decides whether a replica that stores nothing renews its lease. Pure; seconds of a monotonic clock.

    Without it the responses of such a replica would stand still, although others could go on with them. Where
    no replica can store anything none of them beats, and none judges the others, so nobody dies of it.
    """

    def __init__(self, lease_seconds: float) -> None:
        self._patience = MOST_LEASES_WITHOUT_STORING * lease_seconds
        self._since: float | None = None

    def may_beat(self, now: float, *, stores: bool) -> bool:
        """Whether to renew the lease now."""
        if stores:
            self._since = None
            return True
        if self._since is None:
            self._since = now
        return now - self._since < self._patience


class HeartbeatWatch:
    """Decides which other replicas were silent for a whole lease, from this replica's observations. Pure.

    A replica counts as silent while its heartbeat does not change although this replica's own heartbeats are
    all written. So a database outage, a suspended machine or a changed clock count against nobody: nothing is
    observed meanwhile, and afterwards every replica has time to beat again.

    `observe` is called with all heartbeats after each of this replica's own, `failed` if that failed.
    """

    def __init__(self, lease_seconds: float) -> None:
        self._lease = lease_seconds
        self._max_step = lease_seconds / _OBSERVATIONS_PER_LEASE
        self._observed_at: float | None = None
        self._silent: dict[UUID, tuple[leases.HeartbeatTime, float]] = {}
        """By replica: its last heartbeat, and the seconds for which it has not changed."""

    def failed(self) -> None:
        """This replica could not write its own heartbeat: earlier observations prove nothing."""
        self._observed_at = None
        self._silent.clear()

    def observe(
        self, now: float, heartbeats: Mapping[UUID, leases.HeartbeatTime]
    ) -> dict[UUID, leases.HeartbeatTime]:
        """The replicas that have been silent for a lease, with their last heartbeats.

        `now` is in seconds of this replica's monotonic clock. After a gap longer than a lease the observation
        starts over: this replica was suspended, or as good as that.
        """
        gap = now - self._observed_at if self._observed_at is not None else 0.0
        if gap > self._lease:
            self._silent.clear()
        elapsed = min(gap, self._max_step)
        self._observed_at = now
        before, self._silent = self._silent, {}
        for replica, heartbeat in heartbeats.items():
            seen, silence = before.get(replica, (heartbeat, -elapsed))
            self._silent[replica] = (heartbeat, silence + elapsed if heartbeat == seen else 0.0)
        return {
            replica: heartbeat
            for replica, (heartbeat, silence) in self._silent.items()
            if silence >= self._lease
        }
