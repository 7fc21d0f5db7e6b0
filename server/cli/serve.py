"""`holdfast serve`: serves a model until SIGTERM or SIGINT."""

import argparse

from server.cli.command import Subcommands, add_command, print_status
from server.configuration.settings import Config
from server.process import interrupts


def add_commands(commands: Subcommands) -> None:
    add_command(commands, "serve", "serve a model", run, all_settings=True)


def run(config: Config, _options: argparse.Namespace) -> int:
    # Imported here because they import the web framework, which other commands do not need.
    from server.process.log_format import configure_logging
    from server.process.serve import serve

    interrupts.raise_on_interrupt()
    configure_logging(config.log_level)
    return serve(config, print_status)
