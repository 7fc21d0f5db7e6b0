"""The server's own series: what is committed, delivered and waited for here, and the cluster as last seen.

Values are read from the objects that have them, at the time of the scrape, and nothing waits for anything:
what needs SQL is of the sampler's last reading.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from server.delivery.hub import Hub
from server.limits.shared_limit import SharedLimit
from server.maintenance.retention import Retention
from server.metrics.cluster_series import ClusterSampler, cluster_series
from server.metrics.samples import counter, counters, gauge, gauges, histogram
from server.recording.recorder import Recorder
from server.recovery.claimer import Claimer
from server.recovery.heartbeat import Heartbeat
from server.store.database import Database
from server.store.disk_space import Disk
from server.supervised_thread import StallWatch, SupervisedThread
from server.webhooks.sender import SendingStats


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The objects whose state is shown."""

    recorder: Recorder
    hub: Hub
    database: Database
    disk: Disk
    heartbeat: Heartbeat
    claimer: Claimer
    retention: Retention
    stall_watch: StallWatch
    webhooks: SendingStats
    threads: Sequence[SupervisedThread]
    limits: Sequence[SharedLimit]
    """May grow until the first request."""
    lease_seconds: float


class ServerSeries(Collector):
    """Collects on the thread of the scrape."""

    def __init__(self, observed: Observed, sampler: ClusterSampler) -> None:
        self._observed = observed
        self._sampler = sampler

    def describe(self) -> list[Metric]:
        """None, so that registering this does not collect."""
        return []

    def collect(self) -> Iterator[Metric]:
        yield from self._recording()
        yield from self._delivery()
        yield from self._database()
        yield from self._recovery()
        yield from self._webhooks()
        yield from self._process()
        yield from cluster_series(self._sampler)

    def _recording(self) -> Iterator[Metric]:
        stats = self._observed.recorder.stats
        yield histogram("holdfast_commit_seconds", "Seconds of the recorder's commits.", stats.commit_seconds)
        failures = {(kind,): float(count) for kind, count in stats.commit_failures.items()}
        yield counters(
            "holdfast_commit_failures", "Failed tries to commit, by cause.", ("cause",), failures.items()
        )
        yield gauge("holdfast_unflushed", "Engine steps that are generated and not committed.", stats.queued)
        yield gauge(
            "holdfast_suspended_responses",
            "Responses whose last step is committed alone, because it could not be with the others.",
            stats.isolated,
        )

    def _delivery(self) -> Iterator[Metric]:
        hub, capacity = self._observed.hub, self._observed.recorder.capacity
        yield gauge(
            "holdfast_streams_open", "Readers that wait for events or for an end.", hub.count_readers()
        )
        yield gauge(
            "holdfast_followers",
            "Responses that run elsewhere and are read through this replica.",
            len(hub.subscriptions()),
        )
        limits = list(self._observed.limits)
        used = {(limit.what,): float(limit.used()) for limit in limits}
        most = {(limit.what,): float(limit.total) for limit in limits}
        used[("unfinished responses",)], most[("unfinished responses",)] = len(capacity), capacity.total
        yield gauges(
            "holdfast_limit_used", "What is in use of a limit of the server.", ("limit",), used.items()
        )
        yield gauges("holdfast_limit", "The limit itself.", ("limit",), most.items())

    def _database(self) -> Iterator[Metric]:
        pool = self._observed.database.pool_stats
        yield gauge("holdfast_database_pool_size", "The most pooled connections.", pool.size)
        yield gauge("holdfast_database_pool_in_use", "Pooled connections in use.", pool.in_use)
        yield histogram(
            "holdfast_database_pool_wait_seconds",
            "Seconds until a transaction had its connection.",
            pool.wait,
        )
        space = self._observed.disk.space()
        free, reserve = ([], []) if space is None else ([((), space.free)], [((), space.reserve)])
        says = "Free bytes on the disk of an embedded database."
        yield gauges("holdfast_disk_free_bytes", says, (), free)
        yield gauges("holdfast_disk_reserve_bytes", "Bytes that must be free on it.", (), reserve)
        full = self._observed.database.disk_is_full
        yield gauge("holdfast_disk_full", "1 if the database had no room within the last 10 s.", full)

    def _recovery(self) -> Iterator[Metric]:
        heartbeat, counts = self._observed.heartbeat, self._observed.claimer.counts
        yield gauge("holdfast_heartbeat_age_seconds", "Since this replica's last heartbeat.", heartbeat.age)
        yield gauge(
            "holdfast_lease_seconds",
            "Silence after which a replica counts as dead.",
            self._observed.lease_seconds,
        )
        says = "Replicas that this one has declared dead."
        yield counter("holdfast_replicas_declared_dead", says, heartbeat.declared_dead)
        claimed = [
            (("new",), counts.new),
            (("death",), counts.after_death),
            (("handover",), counts.handed_over),
        ]
        says = "Queued responses that this replica began (new), or went on with after a death or a handover."
        yield counters("holdfast_takeovers", says, ("cause",), claimed)
        given_up = {(str(kind).lower(),): float(counts.given_up[kind]) for kind in (False, True)}
        says = "Responses that failed because their replica died."
        yield counters("holdfast_given_up", says, ("background",), given_up.items())
        purged = self._observed.retention.purged.responses
        yield counter("holdfast_purged", "Responses that this replica has purged.", purged)

    def _webhooks(self) -> Iterator[Metric]:
        stats = self._observed.webhooks
        attempts = [(("delivered",), stats.delivered), (("failed",), stats.failed)]
        yield counters("holdfast_webhook_attempts", "Attempts to send webhooks.", ("outcome",), attempts)
        says = "Webhooks that are not attempted any more."
        yield counter("holdfast_webhooks_given_up", says, stats.given_up)
        yield gauge("holdfast_webhook_attempts_under_way", "Webhooks being sent.", stats.under_way)

    def _process(self) -> Iterator[Metric]:
        stalls = self._observed.stall_watch.stalls
        yield counter("holdfast_interpreter_stalls", "Times in which no thread could run.", stalls.count)
        yield counter("holdfast_interpreter_stalled_seconds", "Their duration.", stalls.total_seconds)
        yield gauge(
            "holdfast_interpreter_longest_stall_seconds", "The longest of them.", stalls.longest_seconds
        )
        failures = {(one.name,): float(one.activity.failures) for one in self._observed.threads}
        says = "Turns of a thread that ended with an unexpected exception."
        yield counters("holdfast_thread_failures", says, ("thread",), failures.items())
