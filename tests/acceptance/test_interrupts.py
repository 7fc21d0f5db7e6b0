"""Ctrl-C or SIGTERM before the server is ready ends it without a traceback, and nothing is left behind."""

import subprocess
import sys
import textwrap
from pathlib import Path

import psycopg
import pytest

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


def interrupted(program: str) -> tuple[int, str]:
    """The exit code and the output of a process that handles SIGINT as a command does."""
    begin = (
        "import signal\nfrom server.process import interrupts\n"
        "interrupts.exit_on_interrupt()\nmore = lambda: signal.raise_signal(signal.SIGINT)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", begin + textwrap.dedent(program)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.stderr == ""
    return ended.returncode, ended.stdout


def test_an_interrupt_that_a_library_swallowed_is_raised_before_the_model_is_loaded() -> None:
    assert interrupted("""
        interrupts.raise_on_interrupt()
        try:
            more()
        except KeyboardInterrupt:
            print("raised in a library", flush=True)
        try:
            with interrupts.close_on_interrupt(lambda: None):
                print("the model is loaded")
        except KeyboardInterrupt:
            print("raised again", flush=True)
    """) == (0, "raised in a library\nraised again\n")


def test_an_interrupt_closes_what_is_open_and_leaves_while_a_library_works() -> None:
    assert interrupted("""
        with interrupts.close_on_interrupt(lambda: print("the database is closed")):
            more()
            print("the library goes on")
    """) == (130, "the database is closed\n")


def test_an_interrupt_after_the_model_is_loaded_is_noted_and_disturbs_nothing() -> None:
    assert interrupted("""
        with interrupts.close_on_interrupt(lambda: None):
            pass
        print(interrupts.was_interrupted())
        more()
        print(interrupts.was_interrupted())
    """) == (0, "False\nTrue\n")
