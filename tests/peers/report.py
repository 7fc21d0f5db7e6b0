"""What came of each case, for the run that compares it with the list."""

import json
from pathlib import Path

import pytest


class Report:
    """A plugin of pytest that writes each case's outcome, and what went wrong, to a file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._results: dict[str, list[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keeps the worst of a case's three phases, with the last line of what went wrong."""
        if report.when == "call" or report.outcome != "passed":
            self._results[report.nodeid] = [report.outcome, _why(report)]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.outcome != "passed":
            self._results[report.nodeid] = [report.outcome, str(report.longrepr)[-500:]]

    def pytest_sessionfinish(self) -> None:
        self._file.write_text(json.dumps(self._results, indent=1), encoding="utf-8")


def _why(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2]
    crash = getattr(report.longrepr, "reprcrash", None)
    return crash.message.strip() if crash is not None else str(report.longrepr or "")[-300:]
