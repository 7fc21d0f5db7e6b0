"""Ctrl-C or SIGTERM before the server is ready ends it without a traceback, and nothing is left behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from server.process import interrupts
from tests.support.embedded_process import is_running
from tests.support.rounds import faults_only
from tests.support.server_process import PATIENCE_S, REPOSITORY, environment

INTERRUPT_AT_AN_IMPORT = """
import importlib.abc, os, signal, sys

class Interrupting(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)

module = sys.argv.pop(1)
sys.meta_path.insert(0, Interrupting())
from server.__main__ import main
sys.exit(main())
"""

END_WHEN_RESPONSES_ARE_CLAIMED = """
import os, signal, sys
from server.__main__ import main
from server.recovery.claimer import Claimer

def start(claimer, begin=Claimer.start):
    begin(claimer)
    os.kill(os.getpid(), signal.SIGTERM)

Claimer.start = start
sys.exit(main())
"""


def interrupted_at(
    module: str, url: str | None, *before: str, **settings: object
) -> subprocess.CompletedProcess[str]:
    """`holdfast serve` that gets SIGINT in the moment in which it begins to import that module."""
    return subprocess.run(
        [*before, sys.executable, "-c", INTERRUPT_AT_AN_IMPORT, module, "serve"],
        env=environment(url, {"port": 0, **settings}),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.mark.parametrize(
    "module",
    [
        "server.cli.entry_point",
        *faults_only("sqlalchemy"),
        "server.process.serve",
        *faults_only("starlette.applications"),
        "psycopg",
        "torch",
    ],
)
def test_an_interrupt_at_any_moment_before_the_server_is_ready_ends_it_with_130(
    module: str, database_url: str
) -> None:
    ended = interrupted_at(module, database_url)
    assert (ended.returncode, "Traceback" in ended.stderr, "Ready" in ended.stderr) == (130, False, False)


def test_an_interrupt_counts_where_a_script_has_started_the_server_in_its_background(
    database_url: str,
) -> None:
    ignoring = ("/bin/sh", "-c", 'trap "" INT; exec "$@"', "sh")
    ended = interrupted_at("server.process.serve", database_url, *ignoring)
    assert ended.returncode == 130, ended.stderr


def test_an_interrupt_while_the_model_is_loaded_stops_the_embedded_database(embedded_dir: Path) -> None:
    ended = interrupted_at("torch", None, data_dir=embedded_dir)
    assert ended.returncode == 130, ended.stderr
    assert (embedded_dir / "pgdata").exists()
    assert not is_running(embedded_dir)


def test_sigterm_before_the_server_is_ready_stops_it_as_one_afterwards_does(database_url: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", END_WHEN_RESPONSES_ARE_CLAIMED, "serve"],
        env=environment(database_url, {"port": 0, "engine": "scripted"}),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (ended.returncode, "Traceback" in ended.stderr) == (0, False), ended.stderr
    with psycopg.connect(database_url) as connection:
        assert connection.execute("select state from replicas").fetchall() == [("stopped",)]


class Left(BaseException):
    """The process would have exited."""


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """SIGINT is handled as in a command; leaving the process is an exception."""

    def leave(code: int) -> None:
        raise Left(code)

    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(interrupts._State, "seen", False)
    monkeypatch.setattr(interrupts._State, "terminated", False)
    before = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
    interrupts.exit_on_interrupt()
    monkeypatch.setattr(interrupts._State, "act", interrupts._State.act)
    yield
    for number, handler in before:
        signal.signal(number, handler)


@pytest.mark.usefixtures("exits")
def test_an_interrupt_that_a_library_swallowed_is_raised_before_the_model_is_loaded() -> None:
    interrupts.raise_on_interrupt()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), interrupts.close_on_interrupt(lambda: None):
        pytest.fail("the model must not be loaded")


@pytest.mark.usefixtures("exits")
def test_an_interrupt_closes_what_is_open_and_leaves_while_a_library_works() -> None:
    closed: list[str] = []
    with pytest.raises(Left, match="130"), interrupts.close_on_interrupt(lambda: closed.append("database")):
        signal.raise_signal(signal.SIGINT)
    assert closed == ["database"]


@pytest.mark.usefixtures("exits")
def test_an_interrupt_after_the_model_is_loaded_is_noted_and_disturbs_nothing() -> None:
    with interrupts.close_on_interrupt(lambda: None):
        pass
    assert not interrupts.was_interrupted()
    signal.raise_signal(signal.SIGINT)
    assert interrupts.was_interrupted()
