"""A real Prometheus beside a test, where one is installed: it scrapes servers and evaluates expressions."""

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml  # type: ignore[import-untyped]

from tests.support.eventually import eventually
from tests.support.server_process import free_port

PROMETHEUS = shutil.which("prometheus")
PROMTOOL = shutil.which("promtool")


class Prometheus:
    """Scrapes some ports of this machine once a second, under the job `holdfast`."""

    def __init__(self, url: str) -> None:
        self.url = url

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series of an instant query, each with `metric` and `value`."""
        answer = httpx.get(f"{self.url}/api/v1/query", params={"query": expression}, timeout=30)
        assert answer.status_code == 200, answer.text
        result: list[dict[str, Any]] = answer.json()["data"]["result"]
        return result

    def firing(self) -> set[str]:
        """The names of the alerts that fire."""
        return {one["metric"]["alertname"] for one in self.query('ALERTS{alertstate="firing"}')}


@contextmanager
def prometheus(folder: Path, ports: Sequence[int], rules: Path | None = None) -> Iterator[Prometheus]:
    """A Prometheus that has its files in `folder`."""
    assert PROMETHEUS is not None
    own = free_port()
    settings = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [] if rules is None else [str(rules)],
        "scrape_configs": [
            {
                "job_name": "holdfast",
                "static_configs": [{"targets": [f"127.0.0.1:{port}" for port in ports]}],
            }
        ],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
    with open(folder / "log", "wb") as said:
        process = subprocess.Popen(
            [
                PROMETHEUS,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{own}",
            ],
            stdout=said,
            stderr=said,
        )
    try:
        running = Prometheus(f"http://127.0.0.1:{own}")
        eventually(lambda: _answers(running), within=60)
        yield running
    finally:
        process.terminate()
        process.wait(30)


def _answers(running: Prometheus) -> bool:
    try:
        return httpx.get(f"{running.url}/-/ready").status_code == 200
    except httpx.TransportError:
        return False
