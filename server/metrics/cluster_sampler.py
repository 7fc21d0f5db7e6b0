"""`ClusterSampler`, the thread that reads the database for metrics, and the series of its readings.

A scrape takes the last reading and never waits; without one the series that come of SQL are left out.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import monotonic

from server.metrics.families import Family, gauge, gauges
from server.store.cluster.cluster_overview import ClusterOverview, read_overview
from server.store.database import Database, set_timeouts
from server.store.database_errors import DatabaseError
from server.supervised_thread import Retry, SupervisedThread, Worker

log = logging.getLogger("holdfast.metrics")

SAMPLE_SECONDS = 5.0
STATEMENT_MS = 1000
"""`statement_timeout` of a reading; longer ones are given up, and the next follows."""
FRESH_SECONDS = 3 * SAMPLE_SECONDS
"""The age from which on a reading is not shown any more."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The results of one turn of the sampler."""

    at: float
    """Monotonic seconds."""
    overview: ClusterOverview | None
    """None if the database did not answer."""
    unready: str | None
    """Why this replica is not ready; None if it is."""


class ClusterSampler(Worker):
    """Reads every SAMPLE_SECONDS; a failure changes nothing but the reading."""

    def __init__(
        self,
        database: Database,
        unready_reason: Callable[[], str | None],
        seconds: float = SAMPLE_SECONDS,
        clock: Callable[[], float] = monotonic,
        retention_days: int = 0,
    ) -> None:
        """`unready_reason` is that of /health/ready; it may take as long as a ping of the database."""
        self._database = database
        self._unready_reason = unready_reason
        self._seconds = seconds
        self._clock = clock
        self._retention_days = retention_days
        self._reading: Reading | None = None
        self.thread = SupervisedThread("metrics sampler", self._turn, retry=Retry(max_failures=None))

    @property
    def reading(self) -> Reading | None:
        """The last reading; None before the first, and if it is too old. Any thread."""
        reading = self._reading
        if reading is None or self._clock() - reading.at > FRESH_SECONDS:
            return None
        return reading

    def _turn(self) -> None:
        self.read()
        self.thread.wait(self._seconds)

    def read(self) -> None:
        overview: ClusterOverview | None = None
        try:
            with self._database.begin() as connection:
                set_timeouts(connection, lock_ms=STATEMENT_MS, statement_ms=STATEMENT_MS)
                overview = read_overview(connection, self._retention_days)
        except DatabaseError as error:
            log.debug("the database was not read for metrics: %s", type(error).__name__)
        self._reading = Reading(self._clock(), overview, self._unready_reason())


def cluster_families(sampler: ClusterSampler) -> Iterator[Family]:
    """The series of the last reading; without one, this replica is not ready and the database not up."""
    reading = sampler.reading
    overview = None if reading is None else reading.overview
    ready = reading is not None and reading.unready is None
    yield gauge("holdfast_ready", "1 while this replica serves new requests, as /health/ready says.", ready)
    yield gauge("holdfast_database_up", "1 while the database answers.", overview is not None)
    if overview is not None:
        yield from _overview_families(overview)


def _overview_families(overview: ClusterOverview) -> Iterator[Family]:
    kinds = [("queued", True), ("in_progress", False), ("in_progress", True)]
    counts = dict.fromkeys(kinds, 0) | dict(overview.unfinished)
    yield gauges(
        "holdfast_responses_unfinished",
        "Stored unfinished responses of all replicas.",
        ("status", "background"),
        [((status, str(background).lower()), count) for (status, background), count in counts.items()],
    )
    says = "How long the oldest response without a completion window has waited that no replica runs."
    yield gauge("holdfast_oldest_queued_seconds", says, overview.oldest_queued_seconds)
    says = "Responses with a completion window of 2h or 8h that wait until a replica has nothing else to do."
    yield gauge("holdfast_responses_waiting_for_idle", says, overview.waiting_for_idle)
    says = "Until the first window of those ends, below 0 if it has ended; absent where none waits."
    left = [] if overview.first_window_left is None else [((), overview.first_window_left)]
    yield gauges("holdfast_first_window_left_seconds", says, (), left)
    yield gauges(
        "holdfast_replicas",
        "Replicas: those alive, and those that were within the last day, by state and role.",
        ("state", "role"),
        overview.replicas.items(),
    )
    says = "How long ago the response expired that has waited longest for its purge."
    yield gauge("holdfast_purge_lag_seconds", says, overview.purge_lag_seconds)
    says = "Connections to the database's server, those of other programs too."
    yield gauge("holdfast_database_connections", says, overview.connections)
    says = "Webhooks that wait for an attempt, of all tenants."
    yield gauge("holdfast_webhooks_pending", says, overview.webhooks.deliveries)
    says = "How long ago the response ended whose webhook has waited longest."
    yield gauge("holdfast_webhooks_oldest_pending_seconds", says, overview.webhooks.oldest_seconds)
    says = "The most connections that the database's server takes."
    yield gauge("holdfast_database_max_connections", says, overview.max_connections)
    yield gauge("holdfast_database_size_bytes", "The size of the database.", overview.database_bytes)
