"""The standby process: writes a replica's heartbeat while the server's interpreter is stalled. A program.

A call into native code that holds the GIL (a regular expression, a tokenizer, a compiler) stops every thread
of the server, its heartbeat thread included. This process notices the silence and writes the heartbeat for
up to `longest_stall` seconds.

Standard input is a pipe from the server: a line of JSON, then a byte for each signal. End of file means that
the server has exited, and this process exits, too. It does not write for a server that a signal has stopped.
It connects to Postgres only when it has to write.
"""

import json
import os
import select
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any

import psycopg

WRITE_TIMEOUT_SECONDS = 6.0
"""Seconds for one heartbeat, including the connection."""
_WRITE_HEARTBEAT = "update replicas set heartbeat_at = clock_timestamp() where id = %s and state = 'alive'"


@dataclass(frozen=True, slots=True)
class StandbySettings:
    """The first line of standard input."""

    url: str
    replica: str
    server_pid: int
    every: float
    """Seconds from one heartbeat to the next."""
    silence: float
    """Seconds without a signal after which heartbeats are written."""
    longest_stall: float
    """Seconds without a signal after which they no longer are."""


class HeartbeatSchedule:
    """When to write a heartbeat. Pure; times are seconds of a monotonic clock."""

    def __init__(self, settings: StandbySettings, now: float) -> None:
        self._settings = settings
        self._sign_at = now
        self._beat_at = now

    def signal_alive(self, now: float) -> None:
        """The server has signalled."""
        self._sign_at = now

    def is_due(self, now: float) -> bool:
        """Whether a heartbeat is to be written now."""
        return self._is_silent(now) and now - self._beat_at >= self._settings.every

    def record_attempt(self, now: float) -> None:
        """A heartbeat was tried."""
        self._beat_at = now

    def next_check(self, now: float) -> float:
        """Seconds until a heartbeat may be due, if no signal comes before."""
        if self._is_silent(now):
            return max(0.0, self._beat_at + self._settings.every - now)
        if now < self._sign_at + self._settings.silence:
            return self._sign_at + self._settings.silence - now
        return self._settings.every

    def _is_silent(self, now: float) -> bool:
        return self._settings.silence <= now - self._sign_at <= self._settings.longest_stall


def is_stopped(pid: int) -> bool:
    """Whether a signal (SIGSTOP, Ctrl-Z) has stopped that process, which then loses its lease."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        pass
    try:
        found = subprocess.run(["ps", "-o", "state=", "-p", str(pid)], capture_output=True, check=False)
    except OSError:
        return False
    return found.stdout.strip().startswith(b"T")


class _HeartbeatWriter:
    """Writes heartbeats; connects on the first one."""

    def __init__(self, settings: StandbySettings) -> None:
        self._settings = settings
        self._connection: psycopg.Connection[Any] | None = None

    def write(self) -> bool:
        """Tries to write a heartbeat; False if the replica is no longer alive."""
        signal.setitimer(signal.ITIMER_REAL, WRITE_TIMEOUT_SECONDS)
        try:
            if self._connection is None:
                self._connection = psycopg.connect(self._settings.url, autocommit=True)
            return self._connection.execute(_WRITE_HEARTBEAT, (self._settings.replica,)).rowcount > 0
        except (psycopg.Error, TimeoutError):
            self.close()
            return True
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _raise_timeout(_number: int, _frame: FrameType | None) -> None:
    raise TimeoutError


def main() -> int:
    """Runs until the pipe ends or the replica is declared dead."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the server handles them and closes the pipe
    signal.signal(signal.SIGALRM, _raise_timeout)
    pipe = sys.stdin.fileno()
    settings = StandbySettings(**json.loads(_read_line(pipe)))
    standby, writer = HeartbeatSchedule(settings, monotonic()), _HeartbeatWriter(settings)
    while True:
        ready, _, _ = select.select([pipe], [], [], standby.next_check(monotonic()))
        if ready:
            if not os.read(pipe, 4096):
                return 0
            standby.signal_alive(monotonic())
            writer.close()
        elif standby.is_due(now := monotonic()):
            standby.record_attempt(now)
            if not is_stopped(settings.server_pid) and not writer.write():
                return 0


def _read_line(pipe: int) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        read = os.read(pipe, 1)
        if not read:
            sys.exit(0)
        line += read
    return line


if __name__ == "__main__":
    sys.exit(main())
