"""`ServerMetrics`: the series of a server process, read from its parts, and the threads that they need.

A scrape reads the objects that have the values, and waits for nothing: SQL is the sampler's.
"""

import socket
from collections.abc import Iterator
from functools import partial

from server.http.handlers.health import unready_reason
from server.http.metrics_listener import MetricsListener
from server.metrics.cluster_sampler import ClusterSampler, cluster_families
from server.metrics.engine_families import engine_families
from server.metrics.families import Family, counter, counters, gauge, gauges, histogram
from server.process.startup_stages import Serving
from server.store.schema.upgrade import newest_revision
from server.version import VERSION


class ServerMetrics:
    """Collects on the thread of the scrape."""

    def __init__(self, serving: Serving, scraped: socket.socket | None) -> None:
        """`scraped` is the listening socket of the metrics listener, if there is one."""
        self._serving, self._recording, self._services = serving, serving.recording, serving.services
        config, metrics = self._services.config, self._recording.loaded.metrics
        unready, days = partial(unready_reason, self._services), config.retention_days
        self._sampler = ClusterSampler(self._services.database, unready, retention_days=days)
        self._listener = None if scraped is None else MetricsListener(scraped, metrics.render, config)
        metrics.add(self._collect)

    def start(self) -> None:
        self._sampler.start()
        if self._listener is not None:
            self._listener.start()

    def stop(self) -> None:
        """Ends the threads."""
        if self._listener is not None:
            self._listener.stop()
        self._sampler.stop()

    def _collect(self) -> Iterator[Family]:
        model = self._services.model
        yield from engine_families(model.engine.stats(), model.name, model.model_info)
        yield from self._recorder_families()
        yield from self._delivery_families()
        yield from self._database_families()
        yield from self._recovery_families()
        yield from self._webhook_families()
        yield from self._process_families()
        yield from cluster_families(self._sampler)
        yield self._build_info()

    def _build_info(self) -> Family:
        config, model = self._services.config, self._services.model
        labels = {
            "version": VERSION,
            "schema": newest_revision(),
            "model": model.name,
            "engine": config.engine,
            "device": config.device,
            "attention": model.model_info.attention,
            "role": config.role,
        }
        return gauge("holdfast_build_info", "Version and settings of this process; always 1.", 1, labels)

    def _recorder_families(self) -> Iterator[Family]:
        stats = self._recording.recorder.stats
        yield histogram("holdfast_commit_seconds", "Seconds of the recorder's commits.", stats.commit_seconds)
        failures = {(kind,): float(count) for kind, count in stats.commit_failures.items()}
        says = "Failed tries to commit, by cause."
        yield counters("holdfast_commit_failures", says, ("cause",), failures.items())
        yield gauge("holdfast_unflushed", "Engine steps that are generated and not committed.", stats.queued)
        says = "Responses whose last step is committed alone, because it could not be with the others."
        yield gauge("holdfast_suspended_responses", says, stats.isolated)

    def _delivery_families(self) -> Iterator[Family]:
        hub, capacity = self._recording.hub, self._recording.recorder.capacity
        says = "Readers that wait for events or for an end."
        yield gauge("holdfast_streams_open", says, hub.count_readers())
        says = "Responses that run elsewhere and are read through this replica."
        yield gauge("holdfast_followers", says, len(hub.subscriptions()))
        limits = list(self._services.limits)
        used = {(limit.what,): float(limit.used()) for limit in limits}
        most = {(limit.what,): float(limit.total) for limit in limits}
        used[("unfinished responses",)], most[("unfinished responses",)] = len(capacity), capacity.total
        yield gauges("holdfast_limit_used", "Use of a limit of the server.", ("limit",), used.items())
        yield gauges("holdfast_limit", "The limit itself.", ("limit",), most.items())

    def _database_families(self) -> Iterator[Family]:
        pool = self._services.database.pool_stats
        yield gauge("holdfast_database_pool_size", "The most pooled connections.", pool.size)
        yield gauge("holdfast_database_pool_in_use", "Pooled connections in use.", pool.in_use)
        says = "Seconds until a transaction had its connection."
        yield histogram("holdfast_database_pool_wait_seconds", says, pool.wait)
        space = self._services.disk.space()
        free, reserve = ([], []) if space is None else ([((), space.free)], [((), space.reserve)])
        says = "Free bytes on the disk of an embedded database."
        yield gauges("holdfast_disk_free_bytes", says, (), free)
        yield gauges("holdfast_disk_reserve_bytes", "Bytes that must be free on it.", (), reserve)
        full = self._services.database.disk_is_full
        yield gauge("holdfast_disk_full", "1 if the database had no room within the last 10 s.", full)

    def _recovery_families(self) -> Iterator[Family]:
        heartbeat, counts = self._services.heartbeat, self._services.claimer.counts
        yield gauge("holdfast_heartbeat_age_seconds", "Since this replica's last heartbeat.", heartbeat.age)
        says = "Silence after which a replica counts as dead."
        yield gauge("holdfast_lease_seconds", says, self._services.config.lease_seconds)
        says = "Replicas that this one has declared dead."
        yield counter("holdfast_replicas_declared_dead", says, heartbeat.declared_dead)
        causes = {"new": counts.new, "death": counts.after_death, "handover": counts.handed_over}
        claimed = [((cause,), count) for cause, count in causes.items()]
        says = "Queued responses that this replica began (new), or went on with after a death or a handover."
        yield counters("holdfast_takeovers", says, ("cause",), claimed)
        given_up = {(str(kind).lower(),): float(counts.given_up[kind]) for kind in (False, True)}
        says = "Responses that failed because their replica died."
        yield counters("holdfast_given_up", says, ("background",), given_up.items())
        purged = self._serving.retention.purged.responses
        yield counter("holdfast_purged", "Responses that this replica has purged.", purged)

    def _webhook_families(self) -> Iterator[Family]:
        stats = self._recording.webhooks.stats
        attempts = [(("delivered",), stats.delivered), (("failed",), stats.failed)]
        yield counters("holdfast_webhook_attempts", "Attempts to send webhooks.", ("outcome",), attempts)
        says = "Webhooks that are not attempted any more."
        yield counter("holdfast_webhooks_given_up", says, stats.given_up)
        yield gauge("holdfast_webhook_attempts_under_way", "Webhooks being sent.", stats.under_way)

    def _process_families(self) -> Iterator[Family]:
        stalls = self._services.stall_watch.stalls
        yield counter("holdfast_interpreter_stalls", "Times in which no thread could run.", stalls.count)
        yield counter("holdfast_interpreter_stalled_seconds", "Their duration.", stalls.total_seconds)
        says = "The longest of them."
        yield gauge("holdfast_interpreter_longest_stall_seconds", says, stalls.longest_seconds)
        threads = (*self._services.threads, self._sampler.thread)
        failures = {(thread.name,): float(thread.failures) for thread in threads}
        says = "Turns of a thread that ended with an unexpected exception."
        yield counters("holdfast_thread_failures", says, ("thread",), failures.items())
