import functools
import gc
import os
import re
import signal
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import httpx._transports.default
import pytest
from hypothesis import settings

from tests.support.rounds import example_count

pytest_plugins = [
    "tests.fix_reaper",
    "tests.fix_postgres",
    "tests.fix_cluster",
    "tests.fix_pgbouncer",
    "tests.fix_proxy",
    "tests.fix_releases",
    "tests.fix_server",
    "tests.fix_bodies",
    "tests.fix_tally",
]

TESTS = Path(__file__).parent
_OWN_MARKS = re.compile(r"^pytestmark = \[?\s*pytest\.mark\.(\w+)", re.MULTILINE)
"""The first mark of all tests of a file."""
WAITING = ("faults", "migration", "clients", "acceptance", "contract", "integration")
"""Folders whose tests wait about as long as they compute. Those with the longest files are first: no worker
is to begin one when the others have ended."""


def pytest_configure() -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # several workers' threads of torch would spin for a core
    gc.disable()  # until all tests are there: they stay, and each pass would look at all of them again
    _read_certificates_once()
    _wait_for_answers()
    _feel_interrupts()
    settings.register_profile("suite", max_examples=example_count(100))
    settings.load_profile("suite")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Does not import a file whose tests are all left out by their mark: some take seconds to be imported."""
    if not collection_path.name.startswith("test_"):
        return None
    left_out = set(re.findall(r"\bnot (\w+)", config.option.markexpr))
    marks = _OWN_MARKS.findall(collection_path.read_text(encoding="utf-8"))
    return True if left_out.intersection(marks) and " or " not in config.option.markexpr else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mixes files that wait for servers with files that compute: workers seldom do the same at once."""
    files = [list(tests) for _, tests in groupby(items, key=lambda item: item.path)]
    order = {folder: place for place, folder in enumerate(WAITING)}
    waiting = sorted((tests for tests in files if _folder(tests) in order), key=lambda f: order[_folder(f)])
    computing = [tests for tests in files if _folder(tests) not in order]
    places = [
        (place / len(group), tests) for group in (waiting, computing) for place, tests in enumerate(group)
    ]
    items[:] = [item for _, tests in sorted(places, key=itemgetter(0)) for item in tests]


def _folder(tests: list[pytest.Item]) -> str:
    path = tests[0].path
    return path.relative_to(TESTS).parts[0] if path.is_relative_to(TESTS) else ""


def pytest_collection_finish() -> None:
    gc.enable()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Collects what a file leaves, and has later passes not look at the rest: models, caches, modules.

    Otherwise each `gc.collect()` of a test walks what all files before it have left, for seconds.
    """
    yield
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()


def _read_certificates_once() -> None:
    """A client reads the authorities of TLS for 25 ms of CPU, and each `httpx.get` makes a client."""
    transports: Any = httpx._transports.default
    transports.create_ssl_context = functools.cache(transports.create_ssl_context)


def _wait_for_answers() -> None:
    """Httpx waits five seconds for an answer where a test says nothing else: too short on a busy machine."""
    usual = httpx._config.DEFAULT_TIMEOUT_CONFIG
    usual.connect = usual.read = usual.write = usual.pool = 60.0


def _feel_interrupts() -> None:
    """A script's background job ignores SIGINT, and its children do: here they must feel it.

    What ignores a signal hands that on to every program that it starts; what handles one does not.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
