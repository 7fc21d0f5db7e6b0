"""Families of samples as `prometheus_client` wants them, from values that exist already."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from engine.statistics import Distribution

Labels = Mapping[str, str]
LabelledValues = Iterable[tuple[tuple[str, ...], float]]
NO_LABELS: Labels = {}


def gauge(name: str, says: str, value: float, labels: Labels = NO_LABELS) -> Metric:
    """A gauge with one sample."""
    return gauges(name, says, tuple(labels), [(tuple(labels.values()), value)])


def gauges(name: str, says: str, labels: Sequence[str], values: LabelledValues) -> Metric:
    """A gauge with a sample for each tuple of label values."""
    family = GaugeMetricFamily(name, says, labels=labels)
    for label_values, value in values:
        family.add_metric(label_values, value)
    return family


def counter(name: str, says: str, value: float, labels: Labels = NO_LABELS) -> Metric:
    """A counter with one sample; `name` is without `_total`."""
    return counters(name, says, tuple(labels), [(tuple(labels.values()), value)])


def counters(name: str, says: str, labels: Sequence[str], values: LabelledValues) -> Metric:
    """A counter with a sample for each tuple of label values."""
    family = CounterMetricFamily(name, says, labels=labels)
    for label_values, value in values:
        family.add_metric(label_values, value)
    return family


def histogram(name: str, says: str, values: Distribution, labels: Labels = NO_LABELS) -> Metric:
    """A histogram, whose buckets are cumulative."""
    family = HistogramMetricFamily(name, says, labels=tuple(labels))
    family.add_metric(tuple(labels.values()), list(_buckets(values)), values.total)
    return family


def _buckets(values: Distribution) -> Iterator[tuple[str, float]]:
    names = [*(str(float(bound)) for bound in values.bounds), "+Inf"]
    return zip(names, accumulate(values.counts), strict=True)
