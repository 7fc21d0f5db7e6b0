"""A server's metrics as a test reads them: a value by name and labels, all series, sums over labels."""

from collections.abc import Iterator
from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.support.server_process import ServerProcess


@dataclass(frozen=True)
class Scrape:
    """One scrape."""

    text: str

    def __iter__(self) -> Iterator[tuple[str, dict[str, str], float]]:
        for family in text_string_to_metric_families(self.text):
            for sample in family.samples:
                yield sample.name, sample.labels, sample.value

    @property
    def names(self) -> set[str]:
        """The names of all samples, with `_total`, `_bucket`, `_sum` and `_count`."""
        return {name for name, _, _ in self}

    def values(self, name: str, **labels: str) -> list[float]:
        """The values of the samples of that name that have these labels."""
        return [value for found, has, value in self if found == name and labels.items() <= has.items()]

    def value(self, name: str, **labels: str) -> float:
        """The sum of `values`; 0 without any."""
        return sum(self.values(name, **labels))


def scrape(server: ServerProcess, key: str | None = None) -> Scrape:
    """GET /metrics on the server's own port."""
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    answer = httpx.get(f"{server.url}/metrics", headers=headers, timeout=30)
    assert answer.status_code == 200, answer.text
    return Scrape(answer.text)
