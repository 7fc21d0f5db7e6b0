"""A process of its own that owns or shares an embedded Postgres, for tests that kill it.

`EmbeddedProcess` is the test's side; run as a program, this file is the other side. It starts, says
so in one line of JSON, and obeys the lines it is sent until its standard input ends.
"""

import contextlib
import json
import os
import select
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg

from server.embedded_postgres.data_directory import ClusterDirectory, try_lock
from server.embedded_postgres.embedded_server import EmbeddedPostgres
from server.embedded_postgres.system_account import EmbeddedError, account_for
from tests.support.fork_server import fork_server

PATIENCE_S = 60.0


@dataclass(frozen=True)
class Report:
    """What the process says after each command."""

    url: str = ""
    is_owner: bool = False
    watcher: int = 0
    error: str = ""


class EmbeddedProcess:
    """Starts the process, in a process group of its own; leaving the block kills them all."""

    def __init__(self, data_dir: Path, options: Mapping[str, str], **more: object) -> None:
        settings = {"data_dir": str(data_dir), "options": dict(options), **more}
        read, self._commands = os.pipe()
        self._reports, write = os.pipe()
        self._process = fork_server.fork(
            ["tests.support.embedded_process", json.dumps(settings)], os.environ, (read, write, 2)
        )
        os.close(read)
        os.close(write)
        self._said = b""
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.signal_group(signal.SIGKILL)
        self._process.wait()
        os.close(self._commands)
        os.close(self._reports)

    def report(self) -> Report:
        """The next line that the process says."""
        while b"\n" not in self._said:
            readable, _, _ = select.select([self._reports], [], [], PATIENCE_S)
            assert readable, "the process said nothing"
            block = os.read(self._reports, 65536)
            assert block, "the process ended"
            self._said += block
        line, _, self._said = self._said.partition(b"\n")
        return Report(**json.loads(line))

    def ask(self, command: str) -> Report:
        """Send a command and wait for what comes of it."""
        os.write(self._commands, f"{command}\n".encode())
        return self.report()

    def kill(self) -> None:
        """Kill -9 the process alone."""
        self._process.kill()

    def signal(self, number: int) -> None:
        """Signal the process alone."""
        self._process.send_signal(number)

    def signal_group(self, number: int) -> None:
        """Signal every process of its group, as a terminal or an init system would."""
        os.killpg(self.pid, number)

    def wait(self) -> int:
        """The exit status, once there is one."""
        return self._process.wait(PATIENCE_S)


def is_running(data_dir: Path) -> bool:
    """Whether any process of Postgres is left, as the kernel sees it."""
    directory = ClusterDirectory(data_dir)
    lock = try_lock(directory.cluster_lock, account_for(directory.pgdata, directory.home))
    if lock is not None:
        os.close(lock)
    return lock is None


def main() -> int:
    settings = json.loads(sys.argv[1])
    if "run_as" in settings:
        _become(*settings["run_as"])
    try:
        with EmbeddedPostgres(Path(settings["data_dir"]), options=settings["options"]) as postgres:
            _say(postgres)
            while line := _next_line():
                _obey(postgres, line.strip())
    except KeyboardInterrupt:
        return 130
    except EmbeddedError as error:
        sys.stdout.write(json.dumps({"error": str(error)}) + "\n")
        return 1
    return 0


def _next_line() -> bytes:
    """A signal that comes just before a read that blocks would not be felt until something can be read."""
    while not select.select([0], [], [], 0.1)[0]:
        pass
    return sys.stdin.buffer.readline()


def _become(uid: int, gid: int, python: str) -> None:
    """Drop to an ordinary user, who may not be able to read the Python that root uses."""
    with contextlib.suppress(psycopg.OperationalError):
        psycopg.connect("host=/nowhere")  # imports what it needs while that can still be read
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)
    sys.executable = python


def _obey(postgres: EmbeddedPostgres, command: bytes) -> None:
    if command == b"ensure":
        postgres.ensure()
    elif command == b"fork" and os.fork() == 0:
        signal.pause()  # until the test kills the whole group
    _say(postgres)


def _say(postgres: EmbeddedPostgres) -> None:
    report = Report(
        url=postgres.url,
        is_owner=postgres.is_owner,
        watcher=postgres.watcher.pid if postgres.watcher else 0,
    )
    sys.stdout.write(json.dumps(report.__dict__) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
