"""What the fault tests of a session did, a table at its end: one that did nothing must not look good."""

from collections import Counter
from typing import Any

import pytest

Tally = Counter[tuple[str, str]]
"""By the fault's number in the programme, and the words under which the table shows the count."""

_done: Tally = Counter()


@pytest.fixture
def tally() -> Tally:
    """Add to it what a test has done."""
    return _done


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of pytest-xdist hands its counts to the session that shows them."""
    handed: dict[str, object] | None = getattr(session.config, "workeroutput", None)
    if handed is not None:
        handed["tally"] = [(*place, count) for place, count in _done.items()]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    for fault, what, count in getattr(node, "workeroutput", {}).get("tally", ()):
        _done[fault, what] += count


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _done:
        return
    terminalreporter.section("faults")
    for fault, what in sorted(_done, key=lambda place: (int(place[0].lstrip("F")), place[1])):
        terminalreporter.write_line(f"{fault:4} {_done[fault, what]:9,}  {what}")
