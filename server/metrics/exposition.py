"""`Metrics`: the registry of one process and its text.

Each process has a registry of its own, not the library's global one, so that tests can make several.
"""

import threading

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from server.metrics.samples import gauge

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

disable_created_metrics()  # type: ignore[no-untyped-call]  # a switch of the library: no series with the time of each counter's first value


class Metrics:
    """The registry, with the series of the process and of Python."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self._rendering = threading.Lock()

    def add(self, *collectors: Collector) -> None:
        """Registers collectors. Raises ValueError for a series that exists."""
        for collector in collectors:
            self.registry.register(collector)

    def render(self) -> bytes:
        """All series in Prometheus' text format. Any thread, one at a time."""
        with self._rendering:
            return generate_latest(self.registry)


class BuildInfo(Collector):
    """`holdfast_build_info`: what this process is, as labels of a 1."""

    def __init__(self, **labels: str) -> None:
        self._labels = labels

    def collect(self) -> list[Metric]:
        return [gauge("holdfast_build_info", "What this process is: always 1.", 1, self._labels)]

    def describe(self) -> list[Metric]:
        """None, so that registering this does not collect."""
        return []
