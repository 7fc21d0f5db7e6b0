"""Starts and signals the standby process, which writes heartbeats while the interpreter is stalled."""

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
from server.store.timeout_connection import with_network_timeouts

log = logging.getLogger("holdfast.heartbeat")

MAX_STALL_SECONDS = 60.0
"""Seconds without a signal after which the standby stops, so that a hung server loses its lease."""
_MAX_SILENCE_SECONDS = 2.0
_TIMEOUTS = "-c statement_timeout=5s -c lock_timeout=1s"
_RESTART_SECONDS = 10.0
_EXIT_SECONDS = 5.0


class StandbyHeartbeat:
    """The standby process: started, signalled, and restarted when it has exited."""

    def __init__(self, settings: StandbySettings) -> None:
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0

    def start(self) -> None:
        """Starts the process. A failure is logged, and `signal_alive` tries again."""
        self._started_at = monotonic()
        command = [sys.executable, "-P", standby_heartbeat_process.__file__]
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
            self._write(json.dumps(asdict(self._settings)).encode() + b"\n")
            assert self._process.stdin is not None
            os.set_blocking(self._process.stdin.fileno(), False)
        except OSError as error:
            log.warning("nobody will beat for a stalled interpreter: %s", error)

    def signal_alive(self) -> None:
        """Signals that the interpreter runs. Called by the heartbeat thread; never blocks."""
        if self._process is None or self._process.poll() is not None:
            if monotonic() - self._started_at >= _RESTART_SECONDS:
                log.warning("the standby heartbeat has ended; it is started again")
                self.stop()
                self.start()
            return
        with suppress(OSError):  # a full pipe holds enough signals; a broken one is noticed by the next poll
            self._write(b".")

    def stop(self) -> None:
        """Ends the process and waits for its exit."""
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
    """The standby of this process. It starts writing after a third of the lease, 2 s at most."""
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
