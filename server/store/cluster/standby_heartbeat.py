"""The server's end of the process that beats for it while its interpreter stands still."""

import json
import logging
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from time import monotonic
from uuid import UUID

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from server.store.cluster import standby_heartbeat_process
from server.store.cluster.leases import heartbeat_interval
from server.store.cluster.standby_heartbeat_process import StandbySettings
from server.store.connection import with_network_timeouts

log = logging.getLogger("holdfast.heartbeat")

MAX_STALL_SECONDS = 60.0
"""A server that has shown no sign of life for so long is taken for dead although its process is there."""
_MAX_SILENCE_SECONDS = 2.0
_TIMEOUTS = "-c statement_timeout=5s -c lock_timeout=1s"
_RESTART_SECONDS = 10.0
_EXIT_SECONDS = 5.0


class StandbyHeartbeat:
    """Starts the process, tells it that the server lives, and starts it again if it ends."""

    def __init__(self, settings: StandbySettings) -> None:
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0

    def start(self) -> None:
        """Starts the process; that it cannot be is logged, and tried again later."""
        self._started_at = monotonic()
        command = [sys.executable, "-P", standby_heartbeat_process.__file__]
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
            self._write(json.dumps(asdict(self._settings)).encode() + b"\n")
            assert self._process.stdin is not None
            os.set_blocking(self._process.stdin.fileno(), False)
        except OSError as error:
            log.warning("nobody will beat for a stalled interpreter: %s", error)

    def sign(self) -> None:
        """The server lives. The keeper's thread, after each of its turns; never waits."""
        if self._process is None or self._process.poll() is not None:
            if monotonic() - self._started_at >= _RESTART_SECONDS:
                log.warning("the standby heartbeat has ended; it is started again")
                self.stop()
                self.start()
            return
        with suppress(OSError):  # full: it has signs enough; broken: it is found ended next time
            self._write(b".")

    def stop(self) -> None:
        """Ends the process and waits for that."""
        process, self._process = self._process, None
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
        assert self._process is not None
        assert self._process.stdin is not None
        os.write(self._process.stdin.fileno(), sign)


def make_standby(url: str, replica: UUID, lease_seconds: float) -> StandbyHeartbeat:
    """For this process. It begins early enough that a heartbeat is written before a lease is over."""
    options = conninfo_to_dict(url).get("options") or ""
    conninfo = make_conninfo(
        with_network_timeouts(url),
        application_name="holdfast standby",
        options=f"{options} {_TIMEOUTS}".strip(),
    )
    return StandbyHeartbeat(
        StandbySettings(
            url=conninfo,
            replica=str(replica),
            server_pid=os.getpid(),
            every=heartbeat_interval(lease_seconds),
            silence=min(_MAX_SILENCE_SECONDS, lease_seconds / 3),
            longest_stall=MAX_STALL_SECONDS,
        )
    )
