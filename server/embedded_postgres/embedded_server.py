"""`EmbeddedPostgres`: starts, attaches to, restarts and stops the Postgres of one data directory.

The process that holds `owner.lock` owns the database: it started Postgres, through a watcher that stops it
when the owner is gone. Others attach to its socket; when the owner goes, whichever asks first (`ensure`) is
the next. The kernel keeps both facts that matter, so no crash leaves one wrong: `owner.lock` is held for the
owner's life, and `cluster.lock` is inherited by every process of Postgres. Thread-safe.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple, Self
from urllib.parse import quote

import psycopg
from psycopg import sql

from server.embedded_postgres import data_directory
from server.embedded_postgres import watcher as postgres_watcher
from server.embedded_postgres.binaries import Binaries, binaries_for
from server.embedded_postgres.system_account import Account, EmbeddedError, account_for

Progress = Callable[[str], None]
"""Called with a few words on what a start is waiting for."""
DATABASE = "holdfast"
START_TIMEOUT_S = 120.0
#: Longer than the watcher's own patience, after which it stops Postgres the hard way.
STOP_TIMEOUT_S = postgres_watcher.FAST_SHUTDOWN_S + 30.0
POLL_S = 0.02

SETTINGS = {
    "dynamic_shared_memory_type": "mmap",  # a container's /dev/shm has 64 MB
    "log_checkpoints": "off",
    "log_error_verbosity": "terse",  # a refused row's values are content, and logs outlive it
    "log_timezone": "UTC",
    "max_connections": "100",
    "shared_buffers": "128MB",
    "timezone": "UTC",
}


class EmbeddedPostgres:
    """The database in one data directory, shared by the processes that name it.

    `options` are Postgres' settings on top of ours; `pgbin` is the directory of its programs.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        pgbin: Path | None = None,
        options: Mapping[str, str] | None = None,
        start_timeout_s: float = START_TIMEOUT_S,
        probe: "Callable[[str], ServerState] | None" = None,
    ) -> None:
        if sys.platform == "win32":
            raise EmbeddedError(
                "The embedded Postgres runs on Linux and macOS only: set DATABASE_URL to a "
                "Postgres server, for example one in a container."
            )
        self._directory = data_directory.ClusterDirectory(data_dir.resolve())
        self._pgbin = pgbin
        self._settings = {**SETTINGS, **(options or {})}
        self._start_timeout_s = start_timeout_s
        self._probe = probe or try_to_connect
        self._mutex = threading.Lock()
        self._owner_lock: int | None = None
        self.watcher: subprocess.Popen[bytes] | None = None
        self._log_offset = 0
        self._is_stopped = False
        _instances.add(self)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    @property
    def is_owner(self) -> bool:
        """Whether this process started Postgres, which will stop with it."""
        return self._owner_lock is not None

    @property
    def url(self) -> str:
        return self.url_of(DATABASE)

    def url_of(self, database: str) -> str:
        """The libpq URL of a database of the cluster, over the Unix socket."""
        return socket_url(self._directory.sockets, database)

    def start(self, progress: Progress = lambda _message: None) -> str:
        """Starts the database, or attaches to the process that did; returns `url` once it answers."""
        with self._mutex:
            self._is_stopped = False
            self._reach(progress)
        return self.url

    def ensure(self, progress: Progress = lambda _message: None) -> str:
        """Brings the database back after a connection was lost: restarts a Postgres that died, or takes it
        over from an owner that is gone. Any number of threads and processes may call it.
        """
        with self._mutex:
            if self._is_stopped:
                raise EmbeddedError("The embedded Postgres was stopped by this process.")
            self._reach(progress)
        return self.url

    def stop(self) -> None:
        """Give the database up: as its owner, stop Postgres, also for those who attached to it."""
        self._is_stopped = True  # for a thread that waits for it
        with self._mutex:
            self._is_stopped = True
            self._release()

    def _reach(self, progress: Progress) -> None:
        deadline = time.monotonic() + self._start_timeout_s
        try:
            if not self.is_owner and self._attach_or_own(progress, deadline):
                return
            if self.watcher is None or not self._await_answer(progress, deadline):
                self._run_as_owner(progress, deadline)
        except OSError as error:
            where = self._directory.home
            raise EmbeddedError(f"The embedded Postgres cannot work in {where}: {error}") from error

    def _attach_or_own(self, progress: Progress, deadline: float) -> bool:
        """Whether it is attached to another process's database; False once it is ours to run."""
        account = self._account()
        data_directory.make_home(self._directory, account)
        waiting = _once(progress)
        reach = ServerState("down", "it has no socket")
        while True:
            self._owner_lock = data_directory.try_lock(self._directory.owner_lock, account)
            if self.is_owner:
                return False
            if self._directory.sockets.exists():
                data_directory.check_socket_directory(self._directory, account)
                reach = self._probe(self.url)
                if reach.state == "up":
                    return True
            waiting("waiting for the process that owns the database")
            if time.monotonic() > deadline:
                raise EmbeddedError(
                    f"Another process owns the database in {self._directory.home}, but the database did "
                    f"not answer within {self._start_timeout_s:.0f} s: {reach.complaint}"
                )
            time.sleep(POLL_S)

    def _run_as_owner(self, progress: Progress, deadline: float) -> None:
        try:
            self._discard_watcher()
            cluster_lock = self._claim_cluster(progress, deadline)
            try:
                self._launch(cluster_lock, progress)
            finally:
                os.close(cluster_lock)
            if not self._await_answer(progress, deadline):
                complaint = data_directory.last_error(self._directory, self._log_offset)
                raise EmbeddedError(f"Postgres did not start: {complaint} (its log is {self._directory.log})")
            create_database(self.url_of("postgres"), DATABASE)
        except BaseException:
            self._release()
            raise

    def _account(self) -> Account:
        return account_for(self._directory.pgdata, self._directory.home)

    def _claim_cluster(self, progress: Progress, deadline: float) -> int:
        """Holds `cluster.lock`, once every process of an earlier run is gone.

        Usually their watcher stops them at this moment; where it was killed, too, they are stopped here.
        """
        account = self._account()
        waiting = _once(progress)
        patient_until = time.monotonic() + postgres_watcher.FAST_SHUTDOWN_S
        while True:
            lock = data_directory.try_lock(self._directory.cluster_lock, account)
            postmaster = data_directory.running_postmaster(self._directory)
            if lock is not None and postmaster is None:
                return lock
            if lock is not None:
                os.close(lock)
            if postmaster is not None and not postmaster.is_ours:
                raise EmbeddedError(
                    f"A Postgres that was started by hand (process {postmaster.pid}) is running "
                    f"on {self._directory.pgdata}: stop it first."
                )
            if postmaster is not None:
                is_patient = time.monotonic() < patient_until
                with contextlib.suppress(ProcessLookupError):
                    os.kill(postmaster.pid, signal.SIGINT if is_patient else signal.SIGQUIT)
            waiting("waiting for an earlier Postgres to stop")
            if time.monotonic() > deadline:
                raise EmbeddedError(
                    f"Processes of an earlier Postgres on {self._directory.pgdata} are still "
                    f"running and did not stop within {self._start_timeout_s:.0f} s: end them."
                )
            time.sleep(POLL_S)

    def _launch(self, cluster_lock: int, progress: Progress) -> None:
        account = self._account()
        binaries = binaries_for(account, self._pgbin, self._directory.binaries)
        data_directory.make_socket_directory(self._directory, account)
        if not self._directory.pgdata.exists():
            progress(f"making a database in {self._directory.home}")
            durable = self._settings.get("fsync") != "off"
            data_directory.create_cluster(
                self._directory, binaries, account, lock=cluster_lock, durable=durable
            )
        data_directory.check_major(self._directory, binaries)
        data_directory.remove_stale_files(self._directory)
        log = data_directory.open_log(self._directory, account)
        try:
            self._log_offset = os.fstat(log).st_size
            self.watcher = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", postgres_watcher.__file__, str(cluster_lock)),
                    *((str(account.uid), str(account.gid)) if account.is_other else ("-", "-")),
                    *self._postgres_command(binaries),
                ],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd="/",
                pass_fds=(cluster_lock,),
                start_new_session=True,
            )
        finally:
            os.close(log)

    def _postgres_command(self, binaries: Binaries) -> list[str]:
        """`running_postmaster` recognises ours by its first words."""
        program = binaries.program("postgres")
        paths = ["-D", str(self._directory.pgdata), "-k", str(self._directory.sockets)]
        settings = [f"--{name}={value}" for name, value in self._settings.items()]
        return [program, *paths, "-h", "", "-p", str(data_directory.PORT), *settings]

    def _await_answer(self, progress: Progress, deadline: float) -> bool:
        """True once Postgres answers, False once it has ended.

        One that lives is left alone: it may recover from a crash, or have no connection left, and a restart
        makes either worse. While it recovers there is no deadline: the next start would begin again.
        """
        waiting = _once(progress)
        while (reach := self._probe(self.url_of("postgres"))).state != "up":
            if self.watcher is None or self.watcher.poll() is not None:
                return False
            if reach.state == "recovering":
                waiting("recovering after a crash")
            if self._is_stopped:
                raise EmbeddedError("The embedded Postgres was stopped by this process.")
            if reach.state == "down" and time.monotonic() > deadline:
                raise EmbeddedError(
                    f"Postgres runs but did not answer within {self._start_timeout_s:.0f} s: "
                    f"{reach.complaint} (its log is {self._directory.log})"
                )
            time.sleep(POLL_S)
        return True

    def _release(self) -> None:
        """Stop what we own, wait until it is gone, and let the next owner in."""
        if self._owner_lock is None:
            return
        try:
            if self.watcher is not None:
                self._discard_watcher()
                os.close(self._claim_cluster(lambda _message: None, time.monotonic() + STOP_TIMEOUT_S))
        finally:
            os.close(self._owner_lock)
            self._owner_lock = None

    def _discard_watcher(self) -> None:
        if self.watcher is None:
            return
        watcher, self.watcher = self.watcher, None
        if watcher.stdin is not None:
            watcher.stdin.close()  # the watcher reads end-of-file and stops Postgres
        watcher.wait(timeout=STOP_TIMEOUT_S)

    def _forget(self) -> None:
        """Gives up a fork's copies, or the owner would never seem gone."""
        if self._owner_lock is not None:
            os.close(self._owner_lock)
            self._owner_lock = None
        if self.watcher is not None and self.watcher.stdin is not None:
            self.watcher.stdin.close()
            self.watcher.returncode = 0  # not our child: nothing to wait for
            self.watcher = None


def _once(progress: Progress) -> Progress:
    """Says the first of a loop's messages."""
    messages: list[str] = []

    def say(message: str) -> None:
        if not messages:
            messages.append(message)
            progress(message)

    return say


_instances: "weakref.WeakSet[EmbeddedPostgres]" = weakref.WeakSet()


def _release_in_fork() -> None:
    for postgres in list(_instances):
        postgres._forget()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_release_in_fork)


class ServerState(NamedTuple):
    #: "up" includes a server that has no connection left to give.
    state: Literal["up", "starting", "recovering", "down"]
    complaint: str = ""


def socket_url(sockets: Path, database: str) -> str:
    """The libpq URL of a database of the Postgres that has its socket in this directory."""
    # With the port, because libpq would otherwise take one from PGPORT.
    return f"postgresql://postgres@/{quote(database)}?host={quote(str(sockets))}&port={data_directory.PORT}"


def try_to_connect(url: str) -> ServerState:
    try:
        psycopg.connect(url, connect_timeout=2).close()
    except psycopg.OperationalError as error:
        complaint = str(error)
        if "too many clients" in complaint or "connection slots are reserved" in complaint:
            return ServerState("up")
        if "starting up" in complaint:
            return ServerState("starting", complaint)
        if "recovery" in complaint or "not yet accepting" in complaint:
            return ServerState("recovering", complaint)
        return ServerState("down", complaint)
    return ServerState("up")


def create_database(maintenance_url: str, name: str) -> None:
    try:
        with psycopg.connect(maintenance_url, autocommit=True) as connection:
            query = "SELECT 1 FROM pg_database WHERE datname = %s"
            if connection.execute(query, [name]).fetchone() is None:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    except psycopg.Error as error:
        raise EmbeddedError(f"Cannot create the database {name!r}: {error}") from error
