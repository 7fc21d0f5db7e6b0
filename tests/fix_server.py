"""Servers for tests: the real process, over real HTTP, on databases of their own.

Most tests share `scripted_server`, which answers at once with made-up words and never imports torch; where
keys are needed, `keyed_server`. What must be slow to be seen is asked of `paced_server`. Only `demo_server`
has a model. A test that stops, kills or configures a server, or looks at all of its database, starts one of
its own with `start_server`.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from time import monotonic
from typing import Protocol, cast

import pytest
from openai import OpenAI

from server.embedded_postgres.embedded_server import EmbeddedPostgres
from tests.fix_postgres import temporary_database
from tests.support.invariants import check, watch_statuses
from tests.support.server_process import ServerProcess, living
from tests.support.tenants import make_tenant_key

SCRIPTED: dict[str, object] = {"engine": "scripted", "scripted_tokens": 24}
#: Long answers at a pace at which a test can be in the middle of one; ask for fewer by `max_output_tokens`.
PACED: dict[str, object] = {"engine": "scripted", "scripted_tokens": 5000, "scripted_step_seconds": 0.02}


class StartServer(Protocol):
    """Starts a server with these flags and settings; it ends with the test."""

    def __call__(self, *flags: str, **settings: object) -> ServerProcess: ...


class StartServerOn(Protocol):
    """The same, on a database of the test's choice."""

    def __call__(self, database_url: str, /, *flags: str, **settings: object) -> ServerProcess: ...


@pytest.fixture(scope="session")
def demo_database(cluster: EmbeddedPostgres, template_database: str) -> Iterator[str]:
    with temporary_database(cluster, "demo", template=template_database) as name:
        yield cluster.url_of(name)


@pytest.fixture(scope="session")
def demo_server(demo_database: str) -> Iterator[ServerProcess]:
    """A server with the demo model."""
    yield from _shared("demo_server", demo_database, {"grace_seconds": 2, "torch_threads": 1})


@pytest.fixture(scope="session")
def scripted_database(cluster: EmbeddedPostgres, template_database: str) -> Iterator[str]:
    with temporary_database(cluster, "scripted", template=template_database) as name:
        yield cluster.url_of(name)


@pytest.fixture(scope="session")
def scripted_server(scripted_database: str) -> Iterator[ServerProcess]:
    """A server whose answers are 24 tokens long and there at once."""
    yield from _shared("scripted_server", scripted_database, SCRIPTED)


@pytest.fixture(scope="session")
def paced_database(cluster: EmbeddedPostgres, template_database: str) -> Iterator[str]:
    with temporary_database(cluster, "paced", template=template_database) as name:
        yield cluster.url_of(name)


@pytest.fixture(scope="session")
def paced_server(paced_database: str) -> Iterator[ServerProcess]:
    """A server that gives 50 tokens a second, and whose responses live half a second without a reader."""
    yield from _shared("paced_server", paced_database, {"grace_seconds": 0.5, **PACED})


@pytest.fixture(scope="session")
def keyed_database(cluster: EmbeddedPostgres, template_database: str) -> Iterator[str]:
    with temporary_database(cluster, "keyed", template=template_database) as name:
        yield cluster.url_of(name)


@pytest.fixture(scope="session")
def keyed_server(keyed_database: str) -> Iterator[ServerProcess]:
    """As `scripted_server`, for tests that make keys, each of tenants of its own."""
    make_tenant_key(keyed_database, "nobody")
    yield from _shared("keyed_server", keyed_database, SCRIPTED)


@pytest.fixture(scope="module")
def module_database(cluster: EmbeddedPostgres, template_database: str) -> Iterator[str]:
    """The URL of a database that the tests of a module share."""
    with temporary_database(cluster, "module", template=template_database) as name:
        yield cluster.url_of(name)


@pytest.fixture
def start_server(database_url: str, start_server_on: StartServerOn) -> StartServer:
    """Starts servers on the test's own database; they count as dead after two seconds of silence."""

    def start(*flags: str, **settings: object) -> ServerProcess:
        return start_server_on(database_url, *flags, **{"lease_seconds": 2, **settings})

    return start


@pytest.fixture
def start_server_on() -> Iterator[StartServerOn]:
    """Starts servers on the database of that URL; of the `module` that is given, in a new process.

    Whatever the test did to them, everything that must hold of stored responses holds after it.
    """
    with ExitStack() as stack:
        known: set[str] = set()

        def start(database_url: str, /, *flags: str, **settings: object) -> ServerProcess:
            if database_url not in known:
                known.add(database_url)
                watch_statuses(database_url)
                stack.callback(check, database_url)
            module = cast("Sequence[str] | None", settings.pop("module", None))
            server = ServerProcess(database_url, flags, {**SCRIPTED, **settings}, module)
            stack.callback(server.stop)
            server.start()
            return server

        yield start


def running(database_url: str, settings: Mapping[str, object]) -> Iterator[ServerProcess]:
    """A server on this database, for a fixture; what must hold of stored responses holds after it."""
    server = ServerProcess(database_url, settings=settings)
    try:
        server.start()
        yield server
    finally:
        server.stop()
    check(database_url)


_sharers: dict[str, "_Sharer"] = {}
"""The servers of a whole session, by their fixtures."""
MAX_IDLE_S = 30.0
"""An idle server takes 2 % of a core: as much in this time as its next start."""


@dataclass
class _Sharer:
    server: ServerProcess
    used_at: float
    is_paused: bool = False

    def use(self) -> None:
        self.used_at = monotonic()
        if self.is_paused:
            self.is_paused = False
            self.server.start()

    def pause_if_idle(self) -> None:
        if not self.is_paused and monotonic() - self.used_at > MAX_IDLE_S:
            self.is_paused = True
            self.server.ask_to_end()
            self.server.wait()


def _shared(fixture: str, database_url: str, settings: Mapping[str, object]) -> Iterator[ServerProcess]:
    """As `running`; while the tests of several files do not use it, it does not run."""
    for server in running(database_url, settings):
        _sharers[fixture] = _Sharer(server, monotonic())
        yield server
        del _sharers[fixture]


def _fixtures(item: pytest.Item) -> set[str]:
    """The names of a test's fixtures, and of those that it asks for by its parameters."""
    function = cast("pytest.Function", item)
    parameters = function.callspec.params.values() if hasattr(function, "callspec") else ()
    return {*function.fixturenames, *(value for value in parameters if isinstance(value, str))}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    used = _fixtures(item)
    for fixture, sharer in _sharers.items():
        if fixture in used:
            sharer.use()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Between files, because a module's fixtures may know what a server has in its memory."""
    if nextitem is None or nextitem.path == item.path:
        return
    used = _fixtures(nextitem)
    for fixture, sharer in _sharers.items():
        if fixture not in used:
            sharer.pause_if_idle()


Connect = Callable[..., OpenAI]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Makes `openai` clients that never try twice and are closed after the test."""
    clients: list[OpenAI] = []

    def make(server: ServerProcess, key: str = "none") -> OpenAI:
        client = OpenAI(base_url=server.api, api_key=key, max_retries=0, timeout=60)
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Shows what the servers said, and where they are, beside a failure that one of them may have caused."""
    report = yield
    if report.failed:
        for server in list(living):
            server.say_where_it_is()
            report.sections.append((f"server on port {server.port}", server.said()[-20000:]))
    return report
