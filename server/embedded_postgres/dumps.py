"""Dumps of a database: `write_dump` by pg_dump, `read_dump` by pg_restore, of a major that fits.

A dump is in pg_dump's custom format, readable by its owner alone. Raises EmbeddedError with one sentence.
"""

import os
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, LiteralString

import psycopg
from psycopg import sql

from server.configuration.environment import child_environment
from server.embedded_postgres.binaries import EXTRA, client_connection, client_major, client_programs
from server.embedded_postgres.system_account import EmbeddedError
from server.embedded_postgres.watcher import POSTGRES_ENVIRONMENT

_MAGIC: Final = b"PGDMP"
_CLOSING_S: Final = 3.0

_TABLES: Final = """
    select count(*) from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where c.relkind in ('r', 'p', 'v') and n.nspname not in ('pg_catalog', 'information_schema', 'pg_toast')
"""
_OTHER_SESSIONS: Final = """
    select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()
      and backend_type = 'client backend'
"""
_OURS: Final = "select count(*) from pg_class where relname = 'alembic_version'"


def _program_for(name: str, url: str) -> str:
    """The path of pg_dump or pg_restore of the server's major, else of the next newer one that is here."""
    with _session(url) as connection:
        major = connection.info.server_version // 10000
    programs: dict[int, str] = {}
    for program in client_programs(name):
        version = client_major(program)
        if version is not None and version >= major:
            programs.setdefault(version, str(program))
    if not programs:
        raise EmbeddedError(
            f"There is no {name} of PostgreSQL {major} or newer here: install PostgreSQL's client of that "
            f"version, or {EXTRA}, which brings one."
        )
    return programs[min(programs)]


def write_dump(url: str, target: Path, without_data_of: Iterable[str] = ()) -> int:
    """Dumps a database that may be in use into a new file with mode 0600; returns its bytes."""
    program = _program_for("pg_dump", url)
    if target.exists():
        raise EmbeddedError(f"There is a file {target} already: name another one.")
    excluded = [f"--exclude-table-data=public.{table}" for table in without_data_of]
    try:
        with _file_beside(target) as descriptor:
            _run(program, url, ["--format=custom", "--no-owner", "--no-privileges", *excluded], descriptor)
            os.fsync(descriptor)
        return target.stat().st_size
    except OSError as error:
        raise EmbeddedError(f"The dump cannot be written to {target}: {error.strerror}.") from error


@contextmanager
def _file_beside(target: Path) -> Iterator[int]:
    """A new file to write to, which gets the target's name after the block, in place of what a killed dump
    has left. The file of a dump that still runs is taken, too, which then fails.
    """
    partial = target.with_name(f"{target.name}.partial")
    with suppress(FileNotFoundError):
        partial.unlink()
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        yield descriptor
        if not _is_named(descriptor, partial):
            raise EmbeddedError(f"Another dump is being written to {target}, so this one was dropped.")
        os.link(partial, target)  # unlike a rename, it refuses a file that has come meanwhile
    finally:
        with suppress(OSError):
            if _is_named(descriptor, partial):
                partial.unlink()
        os.close(descriptor)


def _is_named(descriptor: int, path: Path) -> bool:
    """Whether the open file is the one of that name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def check_dump(source: Path) -> None:
    """Raises EmbeddedError for a file that is no dump in the custom format."""
    try:
        with source.open("rb") as file:
            is_dump = file.read(len(_MAGIC)) == _MAGIC
    except OSError as error:
        raise EmbeddedError(f"The dump {source} cannot be read: {error.strerror}.") from error
    if not is_dump:
        raise EmbeddedError(f"{source} is no dump of `holdfast dump`, or of `pg_dump -Fc`.")


def read_dump(url: str, source: Path) -> None:
    """Restores a dump into an empty database, in one transaction."""
    program = _program_for("pg_restore", url)
    options = ["--single-transaction", "--exit-on-error", "--no-owner", "--no-privileges"]
    with source.open("rb") as file:
        _run(program, url, options, subprocess.PIPE, file.fileno(), dbname=True)


def has_tables(url: str) -> bool:
    return _count(url, _TABLES) > 0


def is_of_holdfast(url: str) -> bool:
    return _count(url, _OURS) > 0


def is_in_use(url: str, *, closing_s: float = _CLOSING_S) -> bool:
    """Whether others stay connected to the database: a closed session is listed until it has noticed."""
    until = time.monotonic() + closing_s
    with _session(url) as connection:
        while connection.execute(_OTHER_SESSIONS).fetchone() != (0,):
            if time.monotonic() > until:
                return True
            time.sleep(0.05)
    return False


def _count(url: str, query: LiteralString) -> int:
    with _session(url) as connection:
        row = connection.execute(query).fetchone()
    assert row is not None
    return int(row[0])


@contextmanager
def _session(url: str) -> Iterator[psycopg.Connection]:
    """A session in autocommit mode. Raises EmbeddedError."""
    try:
        with psycopg.connect(url, autocommit=True) as connection:
            yield connection
    except psycopg.Error as error:
        raise EmbeddedError(f"The database refused: {_one_line(str(error))}") from error


@contextmanager
def replacement(maintenance_url: str, name: str, aside: str) -> Iterator[None]:
    """Has a new database `aside` filled, which then takes the place of `name`, in one transaction; after an
    error `name` is as it was.
    """
    replaced = sql.Identifier(f"{name}_replaced")
    own, new = sql.Identifier(name), sql.Identifier(aside)
    with _session(maintenance_url) as connection:
        for left_over in (new, replaced):
            connection.execute(sql.SQL("drop database if exists {}").format(left_over))
        connection.execute(sql.SQL("create database {}").format(new))
    yield
    with _session(maintenance_url) as connection:
        with connection.transaction():
            rename = sql.SQL("alter database {} rename to {}")
            connection.execute(rename.format(own, replaced))
            connection.execute(rename.format(new, own))
        connection.execute(sql.SQL("drop database {}").format(replaced))


def _run(
    program: str,
    url: str,
    options: Sequence[str],
    output: int,
    input_: int = subprocess.DEVNULL,
    *,
    dbname: bool = False,
) -> None:
    target, secrets = client_connection(url)
    command = [program, *options, *(("--dbname", target) if dbname else (target,))]
    done = subprocess.run(
        command,
        stdin=input_,
        stdout=output,
        stderr=subprocess.PIPE,
        check=False,
        env=child_environment({**POSTGRES_ENVIRONMENT, **secrets}),
    )
    if done.returncode != 0:
        complaint = done.stderr.decode(errors="replace").strip() or f"exit status {done.returncode}"
        raise EmbeddedError(f"{Path(program).name} gave up: {_one_line(complaint)}")


def _one_line(complaint: str) -> str:
    lines = complaint.strip().splitlines() or ["it said nothing"]
    line = next((line for line in lines if "error:" in line or "ERROR:" in line), lines[0])
    return line.partition("error: ")[2] or line
