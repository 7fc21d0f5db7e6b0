"""`holdfast db`: migrates the database's schema to this release."""

import argparse

from server.cli.command import Subcommands, add_command, add_group, print_status
from server.configuration.settings import Config
from server.process.open_database import OpenDatabase


def add_commands(commands: Subcommands) -> None:
    group = add_group(commands, "db", "the database")
    add_command(group, "upgrade", "bring the schema to this release's", _upgrade)


def _upgrade(config: Config, _options: argparse.Namespace) -> int:
    opened = OpenDatabase(config, print_status)
    try:
        opened.upgrade()
        print_status("The schema is current.")
        return 0
    finally:
        opened.close()
