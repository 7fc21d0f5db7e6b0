"""Which other replicas have been silent for a whole lease, as one replica observes it. Pure.

A replica judges others only by what it has seen itself: their heartbeats did not change while its own were
all written, for as long as a lease. So an outage of the database, a suspended machine or a clock that is set
counts against nobody: nobody observes anything meanwhile, and afterwards everybody has time to beat again.
"""

from collections.abc import Mapping
from uuid import UUID

LOOKS_PER_LEASE = 4
"""A gap between two looks counts for at most this part of a lease, however long it was: so a replica has had
several turns to beat in before it is judged."""


class HeartbeatWatch:
    """Fed with the heartbeats of all living replicas, after each of this replica's own."""

    def __init__(self, lease_seconds: float) -> None:
        self._lease = lease_seconds
        self._most_step = lease_seconds / LOOKS_PER_LEASE
        self._looked_at: float | None = None
        self._silent: dict[UUID, tuple[float, float]] = {}
        """The heartbeat that was last seen of each, and the seconds for which it has not changed."""

    def failed(self) -> None:
        """This replica could not write its own heartbeat: whatever was observed before proves nothing."""
        self._looked_at = None
        self._silent.clear()

    def look(self, now: float, heartbeats: Mapping[UUID, float]) -> dict[UUID, float]:
        """The replicas whose silence has lasted a lease, with the heartbeats that they stopped at.

        `now` is in seconds of this replica's monotonic clock. A gap longer than a lease begins anew: this
        replica was suspended, or as good as that.
        """
        gap = now - self._looked_at if self._looked_at is not None else 0.0
        if gap > self._lease:
            self._silent.clear()
        step = min(gap, self._most_step)
        self._looked_at = now
        before, self._silent = self._silent, {}
        for replica, heartbeat in heartbeats.items():
            seen, silence = before.get(replica, (heartbeat, -step))
            self._silent[replica] = (heartbeat, silence + step if heartbeat == seen else 0.0)
        return {
            replica: heartbeat
            for replica, (heartbeat, silence) in self._silent.items()
            if silence >= self._lease
        }
