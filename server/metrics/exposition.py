"""`Metrics`: the registry of one process and its text.

Each process has a registry of its own, not the library's global one, so that tests can make several.
"""

import threading
from collections.abc import Callable, Iterable

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.registry import Collector

from server.metrics.families import Family

disable_created_metrics()  # type: ignore[no-untyped-call]  # a switch of the library: no series with the time of each counter's first value


class Metrics:
    """The registry, with the series of the process and of Python."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self._rendering = threading.Lock()

    def add(self, collect: Callable[[], Iterable[Family]]) -> None:
        """Registers families that are read at each scrape, on its thread."""
        self.registry.register(_Collector(collect))

    def render(self) -> bytes:
        """All series in Prometheus' text format. Any thread, one at a time."""
        with self._rendering:
            return generate_latest(self.registry)


class _Collector(Collector):
    def __init__(self, collect: Callable[[], Iterable[Family]]) -> None:
        self._collect = collect

    def collect(self) -> Iterable[Family]:
        return self._collect()

    def describe(self) -> list[Family]:
        """None, so that registering this does not collect."""
        return []
