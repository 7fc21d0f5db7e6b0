"""Postgres clusters that tests restart, crash and fill: of their own, and as careful as in earnest."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import psycopg
import pytest
from psycopg import sql

from server.embedded_postgres.data_directory import ClusterDirectory, running_postmaster
from server.embedded_postgres.embedded_server import EmbeddedPostgres
from server.store.schema.upgrade import upgrade
from tests.fix_postgres import postgres_folder
from tests.support.eventually import eventually
from tests.support.postgres_deaths import LOSSY, base_backup, kill_at_once, put_in_place

PATIENCE_S = 60.0
Mode = Literal["fast", "immediate"]
SIGNALS: dict[Mode, int] = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}


class Cluster:
    """One Postgres with this release's schema, which is stopped and started at will."""

    def __init__(self, home: Path, **options: str) -> None:
        self._directory = ClusterDirectory(home.resolve())
        self.postgres = EmbeddedPostgres(home, options=options)

    @property
    def url(self) -> str:
        """Of a database that nobody uses and others are made from."""
        return self.postgres.url

    @property
    def log(self) -> str:
        """What Postgres said."""
        return self._directory.log.read_text(errors="replace")

    def start(self) -> None:
        """Until it answers, whatever state it was left in."""
        self.postgres.start()

    def stop(self, mode: Mode) -> None:
        """Cuts every connection; `immediate` is a crash, from which it must recover."""
        postmaster = running_postmaster(self._directory)
        assert postmaster is not None
        os.kill(postmaster.pid, SIGNALS[mode])
        eventually(lambda: running_postmaster(self._directory) is None, within=PATIENCE_S)

    def crash(self, *groups: int) -> None:
        """Kill -9 of all its processes at one instant, and of these process groups."""
        kill_at_once(self._directory, *groups)

    def new_database(self) -> str:
        """The URL of a new database with the schema."""
        name = f"test_{uuid.uuid4().hex}"
        with psycopg.connect(self.postgres.url_of("postgres"), autocommit=True) as connection:
            copy = sql.SQL("create database {} template holdfast strategy file_copy")
            connection.execute(copy.format(sql.Identifier(name)))
        return self.postgres.url_of(name)

    def back_up(self, home: Path, *, follows: bool = False) -> "Cluster":
        """A copy of what it has now, not started; with `follows`, a standby."""
        base_backup(self._directory, home, follows=follows)
        return Cluster(home)

    def restore(self, backup: "Cluster") -> None:
        """Puts a backup in the place of its data. It must be stopped."""
        put_in_place(backup._directory, self._directory)

    def end(self) -> None:
        self.postgres.stop()


class SmallDisk:
    """A file system of so few bytes that a test can fill it, up to a certain rest."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._ballast = home / "ballast"

    @property
    def free(self) -> int:
        found = os.statvfs(self.home)
        return found.f_bavail * found.f_frsize

    def fill(self, rest: int = 0) -> None:
        with self._ballast.open("ab") as ballast:
            while self.free > rest:
                try:
                    ballast.write(bytes(min(1 << 20, self.free - rest)))
                    ballast.flush()
                except OSError:
                    return

    def empty(self) -> None:
        self._ballast.unlink(missing_ok=True)


@pytest.fixture
def small_disk() -> Iterator[SmallDisk]:
    """160 MB; only root can have it."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("only root on Linux can mount a small file system")
    home = Path(tempfile.mkdtemp(prefix="holdfast-test-"))
    mount = ["mount", "-t", "tmpfs", "-o", "size=160m,mode=711", "tmpfs", str(home)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        home.rmdir()
        pytest.skip("this container may not mount file systems")
    try:
        yield SmallDisk(home)
    finally:
        eventually(
            lambda: subprocess.run(["umount", str(home)], capture_output=True, check=False).returncode == 0
        )
        home.rmdir()


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[Cluster]:
    """A cluster of this module's own."""
    with _cluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def lossy_cluster() -> Iterator[Cluster]:
    """As `own_cluster`, but an asynchronous commit is in memory alone until a later one is flushed."""
    with _cluster(**LOSSY) as cluster:
        yield cluster


@contextmanager
def _cluster(**options: str) -> Iterator[Cluster]:
    home = postgres_folder()
    cluster = Cluster(home, **options)
    try:
        cluster.start()
        upgrade(cluster.url)
        yield cluster
    finally:
        cluster.end()
        shutil.rmtree(home)


@pytest.fixture
def own_database_url(own_cluster: Cluster) -> str:
    """The URL of a database of this test's own on that cluster."""
    own_cluster.start()
    return own_cluster.new_database()
