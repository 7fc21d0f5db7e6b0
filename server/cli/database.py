"""`holdfast purge` (of what has expired), `storage` (bytes by tenant) and `psql`."""

import argparse
import subprocess
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta

from server.cli import command as cli
from server.cli.options import whole_number
from server.configuration.environment import child_environment
from server.configuration.settings import Config
from server.embedded_postgres.binaries import psql_command
from server.errors import ConfigError
from server.limits.disk_space import Disk
from server.maintenance.partition_drop import PartitionDrop
from server.maintenance.retention import (
    DiskShort,
    Purged,
    drop_partitions,
    expired_conversations,
    purge,
    purge_conversations,
    quiet_seconds,
)
from server.store.content import deletion, idempotency_keys, responses, storage_usage
from server.store.database import Database
from server.store.database_roles import reader_options

MOST_DAYS = 36500


def add_commands(commands: cli.Subcommands) -> None:
    cli.add_command(commands, "storage", "show how many bytes each tenant has stored", _storage)
    says = "open a SQL shell that only reads; takes psql's own arguments"
    psql = cli.add_command(commands, "psql", says, run_psql)
    psql.add_argument("--write", action="store_true", help="with the rights of the schema's owner")
    psql.set_defaults(takes_rest=True)
    purges = cli.add_command(commands, "purge", "remove what has expired, now", _purge)
    purges.add_argument(
        "--older-than",
        type=whole_number(1, MOST_DAYS, " of days"),
        metavar="DAYS",
        help="also remove responses that were made longer ago, whenever they expire",
    )
    purges.add_argument("--dry-run", action="store_true", help="only count what would be removed")


def _storage(config: Config, _options: argparse.Namespace) -> None:
    with cli.current_database(config) as (database, _):
        cli.print_columns("tenant", "bytes")
        for tenant, stored in database.read(storage_usage.totals):
            cli.print_result(f"{tenant}\t{stored}")


def run_psql(config: Config, options: argparse.Namespace) -> int:
    with cli.opened_database(config, cli.print_status) as opened:
        command, secrets = psql_command(opened.session_url)
        options_of_reader = {} if options.write else {"PGOPTIONS": reader_options(opened.session_url)}
        environment = child_environment({**secrets, **options_of_reader})
        return subprocess.run([*command, *options.rest], env=environment, check=False).returncode


def _purge(config: Config, options: argparse.Namespace) -> None:
    age = None if options.older_than is None else timedelta(days=options.older_than)
    with cli.current_database(config) as (database, disk):
        if options.dry_run:
            counted = _count(database, quiet_seconds(config), config.conversation_days, age)
            cli.print_result(f"There are {counted} to purge.")
            return
        total = Purged()
        try:
            for purged in _purge_batches(database, disk, config, age):
                total += purged
        except DiskShort as short:
            raise ConfigError(
                f"A purge writes before it frees, and the disk is nearly full: {short} Make room on it first."
                f" Until now, {total} were purged."
            ) from short
        finally:
            total.record(database, cli.terminal_user(), "purge.command", older_than_days=options.older_than)
        cli.print_result(f"Purged {total}.")


def _purge_batches(database: Database, disk: Disk, config: Config, age: timedelta | None) -> Iterator[Purged]:
    quiet = quiet_seconds(config)
    drop = PartitionDrop(database, config.retention_days, config.ledger_days, quiet)
    yield drop_partitions(disk, drop)
    yield purge(database, disk, quiet)
    yield purge_conversations(database, config.conversation_days)
    if age is None:
        return
    for tenant in database.read(responses.tenants):
        while _expire(database, tenant, age):
            yield purge(database, disk, quiet)


def _expire(database: Database, tenant: str, age: timedelta) -> int:
    with database.begin() as connection:
        return deletion.expire_older(connection, tenant, age)


def _count(database: Database, quiet: float, conversation_days: int, age: timedelta | None) -> Purged:
    with database.begin() as connection:
        due = deletion.count_due(connection, quiet)
        keys = idempotency_keys.count_old_keys(connection)
    if age is not None:
        for tenant in database.read(responses.tenants):
            with database.begin() as connection:
                due += deletion.count_older(connection, tenant, quiet, age)
    conversations = Counter(key.tenant for key in expired_conversations(database, conversation_days))
    return Purged(due, keys, conversations=conversations)
