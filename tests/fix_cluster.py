"""Postgres clusters that tests restart, crash and fill: of their own, and as careful as in earnest."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
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


def is_unmounted(home: Path) -> bool:
    """Whether nobody used it any more, so that it could go."""
    return subprocess.run(["umount", str(home)], capture_output=True, check=False).returncode == 0


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
    home = postgres_folder()
    cluster = Cluster(home)
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
    name = f"test_{uuid.uuid4().hex}"
    with psycopg.connect(own_cluster.postgres.url_of("postgres"), autocommit=True) as connection:
        connection.execute(
            sql.SQL("create database {} template holdfast strategy file_copy").format(sql.Identifier(name))
        )
    return own_cluster.postgres.url_of(name)
