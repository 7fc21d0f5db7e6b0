"""A release that would come after this one: this one's code, with the migrations of `later_migrations`."""

import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from tests.support.fork_server import ForkServer
from tests.support.server_process import REPOSITORY, environment, run_module

LATER = Path(__file__).parent / "later_migrations"
LATER_REVISIONS = ("9001", "9002")
PATIENCE_S = 1800.0
"""For a command: an audit of 100,000 responses takes minutes, where others use the machine, more of them."""
COMMAND_MODULES = ("server.cli.entry_point", "server.cli.database", "server.cli.keys", "server.cli.db.schema")
PARTS = ("server", "engine", "migrations", "demo")


def later_migrations(folder: Path) -> Path:
    """Writes the later release's migrations into `folder`; returns their folder."""
    migrations = folder / "migrations"
    _copy("migrations", folder)
    for file in LATER.glob("[0-9]*.py"):
        shutil.copy(file, migrations / "versions")
    return migrations


def later_release(folder: Path) -> Path:
    """Writes the later release, beside which this one may still serve, into `folder`; returns it."""
    for part in PARTS:
        if part != "migrations":
            _copy(part, folder)
    later_migrations(folder)
    return folder


def _copy(part: str, folder: Path) -> None:
    shutil.copytree(REPOSITORY / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))


def start_command(folder: Path, url: str, *arguments: str) -> "subprocess.Popen[str]":
    """Starts a release's `holdfast` with these arguments; what it says comes in two pipes."""
    return subprocess.Popen(
        [sys.executable, "-m", "server", *arguments],
        cwd=folder,
        env=environment(url, {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_release(folder: Path, url: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Runs a release's `holdfast` with these arguments to its end."""
    words = ["server", *arguments]
    return run_module(words, environment(url, {}), forked_from=_fork_server(folder), patience=PATIENCE_S)


@cache
def _fork_server(folder: Path) -> ForkServer:
    return ForkServer(COMMAND_MODULES, folder=folder)
