"""Families of series, and `Metrics`: the registry of one process and its text.

Each process has a registry of its own, not the library's global one, so that tests can make several.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TypeAlias

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from engine.stats_snapshot import Distribution

Family: TypeAlias = Metric
Labels = Mapping[str, str]
LabelledValues = Iterable[tuple[tuple[str, ...], float]]
NO_LABELS: Labels = {}
OTHER = "other"


def gauge(name: str, says: str, value: float, labels: Labels = NO_LABELS) -> Family:
    return gauges(name, says, tuple(labels), [(tuple(labels.values()), value)])


def gauges(name: str, says: str, labels: Sequence[str], values: LabelledValues) -> Family:
    family = GaugeMetricFamily(name, says, labels=labels)
    for label_values, value in values:
        family.add_metric(label_values, value)
    return family


def counter(name: str, says: str, value: float, labels: Labels = NO_LABELS) -> Family:
    """A counter with one sample; `name` is without `_total`."""
    return counters(name, says, tuple(labels), [(tuple(labels.values()), value)])


def counters(name: str, says: str, labels: Sequence[str], values: LabelledValues) -> Family:
    family = CounterMetricFamily(name, says, labels=labels)
    for label_values, value in values:
        family.add_metric(label_values, value)
    return family


def histogram(name: str, says: str, values: Distribution, labels: Labels = NO_LABELS) -> Family:
    """A histogram, whose buckets are cumulative."""
    family = HistogramMetricFamily(name, says, labels=tuple(labels))
    family.add_metric(tuple(labels.values()), list(_buckets(values)), values.total)
    return family


def _buckets(values: Distribution) -> Iterator[tuple[str, float]]:
    names = [*(str(float(bound)) for bound in values.bounds), "+Inf"]
    return zip(names, accumulate(values.counts), strict=True)


class BoundedLabels:
    """Label values of one kind, at most `limit` of them, so that no caller can add series without end.

    Thread-safe. What has been given once is given for ever: a series never changes its name.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: set[str] = set()
        self._lock = threading.Lock()

    def of(self, value: str) -> str:
        """The value itself, or `other` if there were `limit` before it."""
        if value in self._known:
            return value
        with self._lock:
            if len(self._known) >= self._limit:
                return OTHER
            self._known.add(value)
        return value


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
