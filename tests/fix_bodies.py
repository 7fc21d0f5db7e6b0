"""After each test, every body that a server sent meanwhile is held to OpenAI's document and its SDK."""

from collections.abc import Iterator

import pytest

from tests.support import openai_document
from tests.support.bodies import checked
from tests.support.server_process import faults_of_the_dead, living

_SENT = "bodies"
"""Under which a worker tells how many it has checked."""
_of_workers: list[dict[str, int]] = []


@pytest.fixture
def made_up_items() -> None:
    """For a test that sends items which no model and no server would make: they are told as they came."""


@pytest.fixture(autouse=True)
def valid_bodies(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test while which a server sent something that OpenAI's would not."""
    yield
    faults = [*faults_of_the_dead, *(fault for server in list(living) for fault in server.take_bodies())]
    faults_of_the_dead.clear()
    if "made_up_items" in request.fixturenames:
        return
    assert not faults, f"{len(faults)} faults in what was sent:\n" + "\n".join(dict.fromkeys(faults[:40]))


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[_SENT] = dict(checked)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    """Called by pytest-xdist, in the process that reports, for each worker."""
    _of_workers.append(getattr(node, "workeroutput", {}).get(_SENT, {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    total = checked.copy()
    for counts in _of_workers:
        total.update(counts)
    if total:
        judges = "the SDK's types"
        judges += " and OpenAI's document" if openai_document.is_there() else f" ({openai_document.ABSENT})"
        terminalreporter.write_line(
            f"{total.total()} bodies of {len(total)} kinds were valid or reported above, by {judges}."
        )
