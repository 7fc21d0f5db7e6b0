"""What the fault tests of a session did, told at its end: a run that did nothing must not look good."""

from collections import Counter

import pytest

_done: Counter[str] = Counter()


@pytest.fixture
def tally() -> Counter[str]:
    """Add to it what a test has done, by the words under which the summary shows it."""
    return _done


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _done:
        terminalreporter.section("faults")
        for what, count in sorted(_done.items()):
            terminalreporter.write_line(f"{count:8}  {what}")
