"""Databases for tests: one cluster a session, one fresh database a test."""

import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from server.embedded_postgres.embedded_server import EmbeddedPostgres
from server.store.schema.upgrade import upgrade
from tests.support.embedded_process import is_running
from tests.support.eventually import eventually
from tests.support.reaper import FOLDER_PREFIX

#: A test's database need not survive anything: three settings that make Postgres forget the disk, and one
#: that keeps the log of each cluster small.
IN_A_HURRY = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_wal_size": "256MB",
}
SHARED_MEMORY = Path("/dev/shm")
MEMORY_BYTES = 4 << 30
"""What must be free there: each worker's cluster takes some hundred megabytes."""


def postgres_folder() -> Path:
    """A new folder for a Postgres: in memory, where it copies a database of 400 files ten times as fast."""
    place = SHARED_MEMORY if _has_room(SHARED_MEMORY) else None
    folder = Path(tempfile.mkdtemp(prefix=f"{FOLDER_PREFIX}{os.getpid()}-", dir=place))
    folder.chmod(0o711)  # Postgres, which is another user, gets through
    return folder


def _has_room(folder: Path) -> bool:
    if not folder.is_dir():
        return False
    found = os.statvfs(folder)
    # Tests copy Postgres's programs beside their data.
    runs_programs = not found.f_flag & os.ST_NOEXEC
    return runs_programs and found.f_bavail * found.f_frsize >= MEMORY_BYTES


@pytest.fixture(scope="session")
def cluster() -> Iterator[EmbeddedPostgres]:
    """A running Postgres with nothing in it."""
    data_dir = postgres_folder()
    try:
        with EmbeddedPostgres(data_dir, options=IN_A_HURRY) as postgres:
            yield postgres
    finally:
        shutil.rmtree(data_dir)


@pytest.fixture(scope="session")
def template_database(cluster: EmbeddedPostgres) -> Iterator[str]:
    """The name of a database with the whole schema in it, to make others from."""
    with temporary_database(cluster, "template") as name:
        upgrade(cluster.url_of(name))
        yield name


@pytest.fixture
def database_url(cluster: EmbeddedPostgres, template_database: str) -> Iterator[str]:
    """The URL of a database of this test's own, with the whole schema in it."""
    with temporary_database(cluster, "test", template=template_database) as name:
        yield cluster.url_of(name)


@pytest.fixture
def other_database_url(cluster: EmbeddedPostgres, template_database: str) -> Iterator[str]:
    """The URL of a second database, migrated and empty, that shares nothing with the test's first."""
    with temporary_database(cluster, "other", template=template_database) as name:
        yield cluster.url_of(name)


@pytest.fixture
def empty_database_url(cluster: EmbeddedPostgres) -> Iterator[str]:
    """The URL of a database of this test's own, with nothing in it."""
    with temporary_database(cluster, "empty") as name:
        yield cluster.url_of(name)


@pytest.fixture
def embedded_dir() -> Iterator[Path]:
    """A path for an embedded database of this test's own, which Postgres can reach as any user."""
    parent = postgres_folder()
    try:
        data_dir = parent / "data"
        yield data_dir
        if data_dir.is_dir():
            eventually(lambda: not is_running(data_dir))
    finally:
        shutil.rmtree(parent)


@pytest.fixture(scope="session")
def made_cluster() -> Iterator[Path]:
    """The directory of an embedded database that was made and stopped, to be copied."""
    parent = postgres_folder()
    try:
        with EmbeddedPostgres(parent / "data", options=IN_A_HURRY):
            pass
        yield parent / "data"
    finally:
        shutil.rmtree(parent)


@pytest.fixture
def made_dir(embedded_dir: Path, made_cluster: Path) -> Path:
    """As `embedded_dir`, with a stopped database in it."""
    subprocess.run(["cp", "-a", str(made_cluster), str(embedded_dir)], check=True)
    return embedded_dir


@contextmanager
def temporary_database(cluster: EmbeddedPostgres, kind: str, template: str = "template1") -> Iterator[str]:
    name = f"{kind}_{uuid.uuid4().hex}"
    names = {"name": sql.Identifier(name), "template": sql.Identifier(template)}
    with psycopg.connect(cluster.url_of("postgres"), autocommit=True) as connection:
        connection.execute(
            sql.SQL("CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY").format(**names)
        )
        try:
            yield name
        finally:
            connection.execute(sql.SQL("DROP DATABASE {name} WITH (FORCE)").format(**names))
