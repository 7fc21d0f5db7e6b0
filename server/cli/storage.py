"""`holdfast storage`: prints how many bytes each tenant has stored."""

import argparse

from server.cli.command import Subcommands, add_command, print_result, with_database
from server.configuration.settings import Config
from server.store.content import storage_usage
from server.store.database import Database
from server.store.disk_space import Disk


def add_commands(commands: Subcommands) -> None:
    add_command(commands, "storage", "show how many bytes each tenant has stored", _storage)


def _storage(config: Config, _options: argparse.Namespace) -> int:
    def show(database: Database, _disk: Disk) -> int:
        for tenant, stored in database.read(storage_usage.totals):
            print_result(f"{tenant}\t{stored}")
        return 0

    return with_database(config, show)
