"""The heartbeat thread: renews this replica's lease, expires silent replicas, reconciles owned responses. One
that it owns but does not run, as after a commit without an answer, is released.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Protocol
from uuid import UUID

from server.crashpoints import crashpoint
from server.delivery.hub import Abandonment, Hub
from server.protocol.responses.response import CancelReason
from server.recording.recorder import Recorder
from server.recording.recorder_messages import CheckOwnership
from server.store.cluster import claims, leases
from server.store.cluster.leases import HeartbeatWatch
from server.store.content.responses import ResponseKey
from server.store.database import Database
from server.store.database_errors import DatabaseError
from server.supervised_thread import Retry, SupervisedThread, Worker

log = logging.getLogger("holdfast.heartbeat")

ORPHAN_BEATS = 5
"""Every so many beats a replica looks for responses of others that are gone, even if an older one should."""
MOST_LEASES_WITHOUT_STORING = 3
"""Leases that a replica renews although nothing that it records is stored."""


@dataclass(frozen=True, slots=True)
class Beat:
    """The state of the fleet as a heartbeat has found it."""

    other_replicas: int
    is_first: bool
    """Whether this replica is the oldest, which does at every beat what one can do for all."""
    claimable: bool
    """The heartbeat has released responses, for any replica to claim."""


class BeatListener(Protocol):
    """Is called on the heartbeat's thread."""

    def on_beat(self, beat: Beat) -> None:
        """The lease is renewed. May raise DatabaseError."""

    def on_beat_failed(self) -> None: ...

    def on_cancel(self, response: UUID, reason: CancelReason | None) -> None:
        """A response that runs here has to be cancelled."""

    def on_fenced(self) -> None:
        """Ends the process: it was declared dead, or the thread has given up."""


class Heartbeat(Worker):
    """Beats about once a second, several times within a lease."""

    def __init__(
        self,
        database: Database,
        replica: UUID,
        recorder: Recorder,
        hub: Hub,
        abandonment: Abandonment,
        listener: BeatListener,
        *,
        lease_seconds: float,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`abandonment` gets the foreground responses that run here and have readers on other replicas."""
        self._database = database
        self._replica = replica
        self._recorder = recorder
        self._hub = hub
        self._abandonment = abandonment
        self._listener = listener
        self._lease_seconds = lease_seconds
        self._storing = StoringWatch(lease_seconds)
        self._beats = 0
        self._clock = clock
        self._watch = HeartbeatWatch(lease_seconds)
        self._beat_at = clock()
        self.declared_dead = 0
        self.thread = SupervisedThread(
            "heartbeat",
            self._turn,
            fatal=(leases.Fenced,),
            on_fatal=listener.on_fenced,
            retry=Retry(max_pause=leases.HEARTBEAT_SECONDS),
        )

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
        except Exception as error:
            self._listener.on_beat_failed()
            if not isinstance(error, DatabaseError):
                raise
            log.warning("heartbeat failed, trying again: %s", type(error).__name__)

    def beat(self) -> None:
        """One turn. Raises leases.Fenced if this replica was declared dead, or DatabaseError."""
        stores = self._recorder.trouble() is None
        if not self._storing.may_beat(self._clock(), stores=stores):
            log.error(
                "this replica could store nothing for %d leases: others may take its work",
                MOST_LEASES_WITHOUT_STORING,
            )
            self._watch.failed()
            self._listener.on_beat_failed()
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
        looks = bool(silent) or is_first or self._beats % ORPHAN_BEATS == 0
        self._beats += 1
        orphans = self._release_orphans() if looks else {}
        lost = self._reconcile()
        self._listener.on_beat(Beat(len(heartbeats), is_first, claimable=bool(orphans or lost)))

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

    def _reconcile(self) -> int:
        """Makes rows and runs agree, and cancels what was asked for; returns how many were released."""
        running = [run for run in self._recorder.active_runs() if run.stored]  # before their rows are read
        owned, cancelled = self._database.autocommit(
            lambda connection: (
                claims.owned_responses(connection, self._replica),
                claims.cancel_requested(connection, self._replica),
            )
        )
        ids = {key.id for key in owned}
        if disowned := [run for run in running if run.facts.id not in ids]:
            self._recorder.deliver([CheckOwnership(tuple(disowned))])
        released = self._release_lost(owned)
        for response, reason in cancelled:
            self._listener.on_cancel(response, reason)
        return released

    def _heartbeats(self) -> dict[UUID, leases.HeartbeatTime]:
        """Commits this replica's heartbeat; returns the other replicas'."""
        remote = [response for response in self._hub.read_here() if not self._recorder.produces(response)]
        try:
            with self._database.begin() as connection:
                leases.write_heartbeat(connection, self._replica, remote)
                read = leases.remotely_read(connection, self._replica, self._abandonment.pending())
                heartbeats = leases.other_heartbeats(connection, self._replica)
        except Exception:
            self._watch.failed()
            raise
        self._beat_at = self._clock()
        self._abandonment.settle(read, alone=not heartbeats)
        return heartbeats

    def _release_lost(self, owned: Sequence[ResponseKey]) -> int:
        """Releases those that this replica does not run; returns how many.

        Skips locked rows, because waiting for a lock would delay the next heartbeat. The next turn tries
        them again.
        """
        lost = [key for key in owned if not self._recorder.answers_for(key.id)]
        if not lost:
            return 0
        with self._database.begin() as connection:
            released = claims.release(connection, self._replica, lost, skip_locked=True)
        if released:
            log.warning("%d responses of this replica are not produced by it; released", released)
        return released


class StoringWatch:
    """Decides whether a replica that stores nothing renews its lease, so that others can go on with its
    responses. Pure. Where no replica can store, none beats and none judges, so nobody dies of it.
    """

    def __init__(self, lease_seconds: float) -> None:
        self._patience = MOST_LEASES_WITHOUT_STORING * lease_seconds
        self._since: float | None = None

    def may_beat(self, now: float, *, stores: bool) -> bool:
        if stores:
            self._since = None
            return True
        if self._since is None:
            self._since = now
        return now - self._since < self._patience
