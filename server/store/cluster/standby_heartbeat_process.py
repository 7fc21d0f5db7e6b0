"""Beats for a replica whose interpreter stands still: a program of its own, which the server starts.

One call into native code that holds the interpreter's lock (a regular expression, a tokenizer, a compiler)
stops every thread of the server, the one that writes its heartbeat too. This process notices the silence and
writes the heartbeat in its place, for so long as a stall may be believed in.

Standard input is a pipe whose other end only the server holds: a line of JSON, then a byte for each sign of
life. At its end the server is gone, and so is this process: a killed server is not beaten for. Neither is one
that was stopped by a signal, or that has been silent for too long. The connection is made when it is needed.
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
"""How long one heartbeat may take, with the connection."""
_WRITE_HEARTBEAT = "update replicas set heartbeat_at = clock_timestamp() where id = %s and state = 'alive'"


@dataclass(frozen=True, slots=True)
class StandbySettings:
    """The line of JSON."""

    url: str
    replica: str
    server_pid: int
    every: float
    """Seconds from one heartbeat to the next."""
    silence: float
    """Seconds without a sign of life after which the server is beaten for."""
    longest_stall: float
    """Seconds without one after which it no longer is."""


class HeartbeatSchedule:
    """When to beat. Pure: times are seconds of a monotonic clock."""

    def __init__(self, settings: StandbySettings, now: float) -> None:
        self._settings = settings
        self._sign_at = now
        self._beat_at = now

    def sign(self, now: float) -> None:
        """The server gave a sign of life."""
        self._sign_at = now

    def is_due(self, now: float) -> bool:
        """Whether a heartbeat is to be written in the server's place; asked for again after `every`."""
        return self._is_silent(now) and now - self._beat_at >= self._settings.every

    def beat(self, now: float) -> None:
        """One was tried."""
        self._beat_at = now

    def pause(self, now: float) -> float:
        """Seconds until something may be due, if there is no sign of life before."""
        if self._is_silent(now):
            return max(0.0, self._beat_at + self._settings.every - now)
        if now < self._sign_at + self._settings.silence:
            return self._sign_at + self._settings.silence - now
        return self._settings.every

    def _is_silent(self, now: float) -> bool:
        return self._settings.silence <= now - self._sign_at <= self._settings.longest_stall


def is_stopped(pid: int) -> bool:
    """Whether a signal (SIGSTOP, Ctrl-Z) has stopped that process, which is to lose its lease then."""
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
    """The connection, while it is needed."""

    def __init__(self, settings: StandbySettings) -> None:
        self._settings = settings
        self._connection: psycopg.Connection[Any] | None = None

    def beat(self) -> bool:
        """Tries to write one heartbeat; False when the replica is not alive any more."""
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
    """Until the pipe ends or the replica is declared dead."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they are for the server, which closes the pipe when it ends
    signal.signal(signal.SIGALRM, _raise_timeout)
    pipe = sys.stdin.fileno()
    settings = StandbySettings(**json.loads(_read_line(pipe)))
    standby, beater = HeartbeatSchedule(settings, monotonic()), _HeartbeatWriter(settings)
    while True:
        ready, _, _ = select.select([pipe], [], [], standby.pause(monotonic()))
        if ready:
            if not os.read(pipe, 4096):
                return 0
            standby.sign(monotonic())
            beater.close()
        elif standby.is_due(now := monotonic()):
            standby.beat(now)
            if not is_stopped(settings.server_pid) and not beater.beat():
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
