"""`export` and `import`: what a tenant, or one of its end users, has, as lines of JSON."""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterator
from typing import BinaryIO

from server.caller import check_tenant
from server.cli.command import (
    Subcommands,
    add_command,
    current_database,
    print_status,
    refusals_as_sentences,
    this_user,
)
from server.configuration.settings import Config
from server.errors import ConfigError
from server.maintenance.export_lines import export
from server.maintenance.import_lines import MAX_LINE, BadLine, import_lines
from server.store.database_errors import DatabaseError, first_line
from server.store.erasure.subject import Subject
from server.store.transfer.read_rows import export_snapshot


def add_commands(commands: Subcommands) -> None:
    exported = add_command(
        commands, "export", "write a tenant's data to standard output, as lines of JSON", _export
    )
    exported.add_argument("--tenant", required=True)
    exported.add_argument(
        "--user", help="only objects of this end user: the `user` or `safety_identifier` of the requests"
    )
    imported = add_command(
        commands, "import", "add an export from standard input; existing objects stay", _import
    )
    imported.add_argument("--tenant", help="the tenant that gets it, in place of the export's own")


def _export(config: Config, options: argparse.Namespace) -> int:
    subject = Subject(options.tenant, options.user)
    if sys.stdout.isatty():
        raise ConfigError("An export goes to a file: holdfast export --tenant NAME > FILE")
    with current_database(config) as (database, _), refusals_as_sentences():
        written = 0
        try:
            with export_snapshot(database) as connection:
                for line in export(connection, subject):
                    sys.stdout.buffer.write(line)
                    written += 1
            sys.stdout.buffer.flush()
        except DatabaseError as error:
            raise ConfigError(f"The export could not go on: {first_line(error)}. It is not whole.") from error
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that no flush fails at exit
            raise ConfigError(f"The export cannot be written: {error.strerror}. It is not whole.") from error
        with database.begin() as connection:
            this_user().record(connection, "tenant.export", options.tenant, "", {"lines": written})
    print_status(f"Exported {written - 2} objects. They are not encrypted.")
    return 0


def _import(config: Config, options: argparse.Namespace) -> int:
    with current_database(config) as (database, _), refusals_as_sentences():
        if options.tenant is not None:
            check_tenant(options.tenant)
        try:
            tenant, added = import_lines(database, _lines(sys.stdin.buffer), options.tenant)
        except BadLine as bad:
            raise ConfigError(f"{bad} Nothing was imported.") from bad
        except DatabaseError as error:
            raise ConfigError(f"Nothing was imported: {first_line(error)}.") from error
        with database.begin() as connection:
            this_user().record(connection, "tenant.import", tenant, "", {"added": dict(added)})
    print_status(f"Tenant {tenant} has {_described(added)} more.")
    return 0


def _lines(source: BinaryIO) -> Iterator[bytes]:
    """The lines of a file; one that is too long is cut off after it is known to be."""
    while line := source.readline(MAX_LINE + 1):
        yield line


def _described(added: Counter[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted((+added).items())) or "nothing"
