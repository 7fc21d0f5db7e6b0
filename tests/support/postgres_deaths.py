"""Deaths of a whole Postgres at one instant, as a crash of its machine ends it, and copies of its directory.

A process that is killed does not lose what the kernel has from it. Such a death loses the write-ahead log
that Postgres still has in its own memory: commits that did not wait for the disk. `LOSSY` keeps them there.
"""

import os
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

from server.embedded_postgres.binaries import binaries_for
from server.embedded_postgres.data_directory import PORT, ClusterDirectory, running_postmaster
from server.embedded_postgres.system_account import account_for
from server.embedded_postgres.watcher import POSTGRES_ENVIRONMENT
from tests.support.eventually import eventually

LOSSY = {"wal_writer_delay": "10s", "wal_writer_flush_after": "1GB"}
"""Settings with which nobody flushes an asynchronous commit for 10 s, unless a later commit does."""
PATIENCE_S = 60.0


def kill_at_once(directory: ClusterDirectory, *groups: int) -> None:
    """Kills the Postgres of that directory, and these process groups.

    All of them are stopped before the first dies: none sees another die, and writes something because of it.
    """
    postmaster = running_postmaster(directory)
    assert postmaster is not None
    for group in groups:
        _signal_group(group, signal.SIGSTOP)
    os.kill(postmaster.pid, signal.SIGSTOP)
    backends = children_of(postmaster.pid)
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for backend in backends:
            with suppress(ProcessLookupError):
                os.kill(backend, number)
    os.kill(postmaster.pid, signal.SIGKILL)
    for group in groups:
        _signal_group(group, signal.SIGKILL)
    eventually(lambda: running_postmaster(directory) is None, within=PATIENCE_S)


def _signal_group(group: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def base_backup(source: ClusterDirectory, home: Path, *, follows: bool = False) -> None:
    """Copies a running embedded database to the directory `home`; with `follows`, as a standby of it."""
    account = account_for(source.pgdata)
    target = ClusterDirectory(home.resolve())
    target.pgdata.mkdir(mode=0o700)
    account.take(target.pgdata)
    made = subprocess.run(
        [
            binaries_for(account, None, source.binaries).program("pg_basebackup"),
            *("-h", str(source.sockets), "-p", str(PORT), "-U", "postgres"),
            *("-D", str(target.pgdata), "-X", "stream", "-c", "fast"),
            *(["-R"] if follows else []),
        ],
        check=False,
        capture_output=True,
        text=True,
        cwd="/",
        env=POSTGRES_ENVIRONMENT,
        **account.popen_identity,
    )
    assert made.returncode == 0, made.stderr


def put_in_place(copy: ClusterDirectory, directory: ClusterDirectory) -> None:
    """Has a stopped Postgres find the copy at its next start, as after a restore."""
    shutil.rmtree(directory.pgdata)
    copy.pgdata.rename(directory.pgdata)
