"""`HeartbeatWatch`: which other replicas have been silent for a whole lease. Pure."""

from collections.abc import Mapping
from uuid import UUID

from server.store.cluster.leases import HeartbeatTime

_OBSERVATIONS_PER_LEASE = 4
"""A gap between two observations counts for at most this part of a lease, so that a replica has had several
turns to beat before it is declared dead."""


class HeartbeatWatch:
    """Decides which other replicas were silent for a whole lease, from this replica's observations.

    A replica counts as silent while its heartbeat does not change although this replica's own heartbeats are
    all written. So a database outage, a suspended machine or a changed clock count against nobody: nothing is
    observed meanwhile, and afterwards every replica has time to beat again.

    `observe` is called with all heartbeats after each of this replica's own, `failed` if that failed.
    """

    def __init__(self, lease_seconds: float) -> None:
        self._lease = lease_seconds
        self._max_step = lease_seconds / _OBSERVATIONS_PER_LEASE
        self._observed_at: float | None = None
        self._silent: dict[UUID, tuple[HeartbeatTime, float]] = {}
        """By replica: its last heartbeat, and the seconds for which it has not changed."""

    def failed(self) -> None:
        """Forgets all observations: they prove nothing once this replica's own heartbeat has failed."""
        self._observed_at = None
        self._silent.clear()

    def observe(self, now: float, heartbeats: Mapping[UUID, HeartbeatTime]) -> dict[UUID, HeartbeatTime]:
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
