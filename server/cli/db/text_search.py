"""`db text-search`: an index for words in the history."""

import argparse

from server.cli.command import Subcommands, add_command, opened_database, print_status
from server.configuration.settings import Config
from server.errors import ConfigError
from server.store.database_errors import DatabaseError, in_one_line
from server.store.schema import text_search


def add_commands(group: Subcommands) -> None:
    """Adds the command to `holdfast db`."""
    command = add_command(group, "text-search", "make or drop an index for words in the history", _run)
    command.add_argument("state", choices=("on", "off"))


def _run(config: Config, options: argparse.Namespace) -> int:
    with opened_database(config, print_status) as opened:
        opened.make_current()
        try:
            if options.state == "on":
                text_search.turn_on(opened.session_url)
            else:
                text_search.turn_off(opened.session_url)
        except DatabaseError as error:
            raise ConfigError(
                f"The database refused: {in_one_line(error)}. Nothing is lost; try again, without long"
                " transactions beside it."
            ) from error
    print_status(f"Text search is {options.state}.")
    return 0
