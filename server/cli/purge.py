"""`holdfast purge`: what servers purge by themselves, now; with an age, also what would expire later."""

import argparse
from collections.abc import Iterator
from datetime import timedelta

from server.configuration.settings import Config
from server.errors import ConfigError
from server.maintenance.retention import DiskShort, Purged, purge, quiet_seconds
from server.store.content import retention
from server.store.database import Database
from server.store.disk_space import Disk

MOST_DAYS = 36500


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--older-than",
        type=_age,
        metavar="DAYS",
        help="also what was made longer ago than that, whenever it would expire",
    )
    command.add_argument("--dry-run", action="store_true", help="only say how much there is to purge")


def _age(text: str) -> timedelta:
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= MOST_DAYS):
        raise argparse.ArgumentTypeError(f"must be a whole number of days from 1 to {MOST_DAYS}")
    return timedelta(days=int(text))


def run(database: Database, disk: Disk, config: Config, options: argparse.Namespace) -> str:
    """Purges, or counts; a sentence about how much. Raises ConfigError while the disk is nearly full."""
    quiet = quiet_seconds(config)
    if options.dry_run:
        return f"There are {_told(_count(database, quiet, options.older_than))} to purge."
    done = Purged()
    try:
        for purged in _purge(database, disk, quiet, options.older_than):
            done += purged
    except DiskShort as short:
        raise ConfigError(
            f"A purge writes before it frees, and the disk is nearly full: {short} Make room on it first."
            f" Until now, {_told(done)} were purged."
        ) from short
    return f"Purged {_told(done)}."


def _purge(database: Database, disk: Disk, quiet: float, age: timedelta | None) -> Iterator[Purged]:
    yield purge(database, disk, quiet)
    if age is None:
        return
    for tenant in _tenants(database):
        while _expire(database, tenant, age):
            yield purge(database, disk, quiet)


def _expire(database: Database, tenant: str, age: timedelta) -> int:
    with database.begin() as connection:
        return retention.expire_older(connection, tenant, age)


def _tenants(database: Database) -> list[str]:
    with database.begin() as connection:
        return retention.tenants(connection)


def _count(database: Database, quiet: float, age: timedelta | None) -> Purged:
    with database.begin() as connection:
        found = retention.count_due(connection, quiet)
        keys = retention.count_old_keys(connection)
    if age is None:
        return Purged(found, keys)
    for tenant in _tenants(database):
        with database.begin() as connection:
            found += retention.count_older(connection, tenant, quiet, age)
    return Purged(found, keys)


def _told(purged: Purged) -> str:
    return f"{purged.responses} responses and {purged.keys} idempotency keys"
