"""`ProcessMetrics`: the metrics of a server process, made of its parts, and the threads that they need."""

import socket
from collections.abc import Sequence
from functools import partial

from server.configuration.settings import Config
from server.http.handlers.health import unready_reason
from server.http.metrics_listener import MetricsListener
from server.http.services import Services
from server.maintenance.retention import Retention
from server.metrics.cluster_series import ClusterSampler
from server.metrics.engine_series import EngineSeries
from server.metrics.events import Events
from server.metrics.exposition import BuildInfo, Metrics
from server.metrics.server_series import Observed, ServerSeries
from server.prompting.loaded_model import LoadedModel
from server.recovery.heartbeat import Heartbeat
from server.store.schema.upgrade import newest_revision
from server.version import VERSION
from server.webhooks.sender import SendingStats


class ProcessMetrics:
    """The registry, and counters for what happens before the rest of the process is made."""

    def __init__(self, config: Config, model: LoadedModel, tool_servers: Sequence[str]) -> None:
        """`tool_servers` are the labels of registered MCP servers."""
        self.metrics = Metrics()
        self.events = Events(self.metrics.registry, model.name, tool_servers)
        self._config = config
        self._model = model
        self._sampler: ClusterSampler | None = None
        self._listener: MetricsListener | None = None

    def start(
        self,
        services: Services,
        heartbeat: Heartbeat,
        retention: Retention,
        webhooks: SendingStats,
        scraped: socket.socket | None,
    ) -> None:
        """Shows the state of these, and serves it on the listening socket `scraped` if there is one."""
        days = self._config.retention_days
        reason = partial(unready_reason, services)
        self._sampler = ClusterSampler(services.database, reason, retention_days=days)
        observed = Observed(
            recorder=services.recorder,
            hub=services.hub,
            database=services.database,
            disk=services.disk,
            heartbeat=heartbeat,
            claimer=services.claimer,
            retention=retention,
            stall_watch=services.stall_watch,
            webhooks=webhooks,
            threads=(*services.threads, self._sampler.thread),
            limits=services.limits,
            lease_seconds=self._config.lease_seconds,
        )
        model = self._model
        self.metrics.add(
            EngineSeries(model.engine.stats, model.name, model.model_info),
            ServerSeries(observed, self._sampler),
            BuildInfo(
                version=VERSION,
                schema=newest_revision(),
                model=model.name,
                engine=self._config.engine,
                device=self._config.device,
                attention=model.model_info.attention,
                role=self._config.role,
            ),
        )
        self._sampler.start()
        if scraped is not None:
            self._listener = MetricsListener(scraped, self.metrics, self._config)
            self._listener.start()

    def stop(self) -> None:
        """Ends the threads."""
        if self._listener is not None:
            self._listener.stop()
        if self._sampler is not None:
            self._sampler.stop()
