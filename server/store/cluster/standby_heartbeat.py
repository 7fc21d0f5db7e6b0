"""The standby heartbeat: a process that beats while the server's interpreter is stalled.

A call into native code that holds the GIL (a regular expression, a tokenizer, a compiler) stops every thread
of the server, its heartbeat thread included. The standby process notices the silence and writes the heartbeat
for up to `longest_stall` seconds. `StandbyHeartbeat` starts it and signals that the interpreter runs.

This file is also the program of that process, so it imports nothing of the server at its top. Standard input
is a pipe from the server: a line of JSON, then a byte for each signal. End of file means that the server has
exited, and the process exits, too. It does not write for a server that a signal has stopped. It connects to
Postgres only when it has to write.
"""

import json
import logging
import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uuid import UUID

    import psycopg

log = logging.getLogger("holdfast.heartbeat")
MAX_STALL_SECONDS = 60.0
"""Seconds without a signal after which the standby stops, so that a hung server loses its lease."""
_MAX_SILENCE_SECONDS = 2.0
_RESTART_SECONDS = 10.0
_EXIT_SECONDS = 5.0
_IMPORT_AFTER_SECONDS = 10.0
"""The import of psycopg takes as long as a third of the server's own start, beside which it is not done."""
WRITE_TIMEOUT_SECONDS = 6.0
"""Seconds for one heartbeat, including the connection."""
_WRITE_HEARTBEAT = """
    set local statement_timeout = '5s'; set local lock_timeout = '1s';
    update replicas set heartbeat_at = clock_timestamp() where id = %s and state = 'alive'
"""
"""One transaction: its settings do not outlive it in a session that a pooler shares."""


@dataclass(frozen=True, slots=True)
class StandbySettings:
    """The first line of standard input."""

    url: str
    replica: str
    server_pid: int
    every: float
    silence: float
    """Seconds without a signal after which heartbeats are written."""
    longest_stall: float


class StandbyHeartbeat:
    """The standby process: started, signalled, and restarted when it has exited."""

    def __init__(self, settings: StandbySettings, *, restart_seconds: float = _RESTART_SECONDS) -> None:
        """It is started again `restart_seconds` after its last start at the earliest."""
        self._settings = settings
        self._restart_seconds = restart_seconds
        self.process: subprocess.Popen[bytes] | None = None
        """None before the start and after the stop."""
        self._started_at = 0.0

    def start(self) -> None:
        """Starts the process. A failure is logged, and `signal_alive` tries again."""
        self._started_at = monotonic()
        command = [sys.executable, "-P", __file__]
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                process_group=0,  # a terminal's Ctrl-C would meet it before it ignores SIGINT
            )
            self._write(json.dumps(asdict(self._settings)).encode() + b"\n")
            assert self.process.stdin is not None
            os.set_blocking(self.process.stdin.fileno(), False)
        except OSError as error:
            log.warning("nobody will beat for a stalled interpreter: %s", error)

    def signal_alive(self) -> None:
        """Signals that the interpreter runs. Called by the heartbeat thread; never blocks."""
        if self.process is None or self.process.poll() is not None:
            if monotonic() - self._started_at >= self._restart_seconds:
                log.warning("the standby heartbeat has ended; it is started again")
                self.stop()
                self.start()
            return
        with suppress(OSError):  # a full pipe holds enough signals; a broken one is noticed by the next poll
            self._write(b".")

    def stop(self) -> None:
        """Ends the process and waits for its exit."""
        process, self.process = self.process, None
        if process is None:
            return
        with suppress(OSError):
            if process.stdin is not None:
                process.stdin.close()
        try:
            process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _write(self, sign: bytes) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        os.write(self.process.stdin.fileno(), sign)


def make_standby(url: str, replica: "UUID", lease_seconds: float) -> StandbyHeartbeat:
    """The standby of this process. It starts writing after a third of the lease, 2 s at most."""
    from psycopg.conninfo import make_conninfo

    from server.store.cluster.leases import heartbeat_interval
    from server.store.timeout_connection import with_network_timeouts

    return StandbyHeartbeat(
        StandbySettings(
            url=make_conninfo(with_network_timeouts(url), application_name="holdfast standby"),
            replica=str(replica),
            server_pid=os.getpid(),
            every=heartbeat_interval(lease_seconds),
            silence=min(_MAX_SILENCE_SECONDS, lease_seconds / 3),
            longest_stall=MAX_STALL_SECONDS,
        )
    )


def is_stopped(pid: int) -> bool:
    """Whether a signal (SIGSTOP, Ctrl-Z) has stopped that process, which then loses its lease."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        pass
    try:
        listed = subprocess.run(["ps", "-o", "state=", "-p", str(pid)], capture_output=True, check=False)
    except OSError:
        return False
    return listed.stdout.strip().startswith(b"T")


class _HeartbeatWriter:
    """Writes heartbeats; connects on the first one."""

    def __init__(self, settings: StandbySettings) -> None:
        self._settings = settings
        self._connection: psycopg.Connection[Any] | None = None

    def write(self) -> bool:
        """Tries to write a heartbeat; False if the replica is no longer alive."""
        import psycopg

        signal.setitimer(signal.ITIMER_REAL, WRITE_TIMEOUT_SECONDS)
        try:
            if self._connection is None:
                self._connection = psycopg.connect(self._settings.url, autocommit=True)
            cursor = psycopg.ClientCursor(self._connection)  # which can send several statements together
            cursor.execute(_WRITE_HEARTBEAT, (self._settings.replica,))
            while cursor.nextset():
                pass
            return cursor.rowcount > 0
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
    """Runs until the pipe ends, the replica is declared dead, or the server has been silent for too long."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the server handles them and closes the pipe
    signal.signal(signal.SIGALRM, _raise_timeout)
    pipe = sys.stdin.fileno()
    with open(pipe, "rb", buffering=0, closefd=False) as unbuffered:
        line = unbuffered.readline()
    if not line.endswith(b"\n"):
        return 0
    settings = StandbySettings(**json.loads(line))
    writer = _HeartbeatWriter(settings)
    started_at = heard_at = monotonic()
    wait = settings.silence
    while True:
        ready, _, _ = select.select([pipe], [], [], wait)
        if ready:
            if not os.read(pipe, 4096):
                return 0
            heard_at, wait = monotonic(), settings.silence
            writer.close()
            if heard_at - started_at > _IMPORT_AFTER_SECONDS:
                import_module("psycopg")
            continue
        wait = settings.every
        if monotonic() - heard_at > settings.longest_stall:
            return 0
        if not is_stopped(settings.server_pid) and not writer.write():
            return 0


if __name__ == "__main__":
    sys.exit(main())
