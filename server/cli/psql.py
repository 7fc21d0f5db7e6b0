"""`holdfast psql`: opens psql on the server's database."""

import argparse
import subprocess

from server.cli.command import Subcommands, add_command, print_status
from server.configuration.settings import Config, child_environment
from server.embedded_postgres.binaries import psql_command
from server.process.open_database import OpenDatabase


def add_commands(commands: Subcommands) -> None:
    add_command(commands, "psql", "open a SQL shell on the database; takes psql's own arguments", run)


def run(config: Config, options: argparse.Namespace) -> int:
    opened = OpenDatabase(config, print_status)
    try:
        command, secrets = psql_command(opened.url)
        environment = child_environment(secrets)
        return subprocess.run([*command, *options.rest], env=environment, check=False).returncode
    finally:
        opened.close()
