"""What the fault tests of a session did, a table at its end: one that did nothing must not look good."""

from collections import Counter

import pytest

Tally = Counter[tuple[str, str]]
"""By the fault's number in the programme, and the words under which the table shows the count."""

_done: Tally = Counter()


@pytest.fixture
def tally() -> Tally:
    """Add to it what a test has done."""
    return _done


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _done:
        return
    terminalreporter.section("faults")
    for fault, what in sorted(_done, key=lambda place: (int(place[0].lstrip("F")), place[1])):
        terminalreporter.write_line(f"{fault:4} {_done[fault, what]:9,}  {what}")
