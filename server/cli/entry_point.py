"""The `holdfast` command: its parser, its exit codes, and `holdfast serve`.

Exit codes: 0 done, 1 refused with a sentence, 2 wrong usage, 70 start the process again. `audit` exits with 1
if it finds violations and with 2 if it cannot run, `doctor` with 1 if it finds a problem.
"""

import argparse
import logging
from collections.abc import Sequence

from server.cli import (
    audit,
    database,
    doctor,
    erase,
    keys,
    prices,
    prompts,
    tenants,
    trail,
    transfer,
    webhooks,
)
from server.cli.command import add_command, print_status
from server.cli.db import backup, schema
from server.configuration import environment, settings
from server.configuration.settings import Config
from server.embedded_postgres.account import EmbeddedError
from server.errors import ConfigError
from server.process import interrupts
from server.process.interrupts import INTERRUPTED
from server.version import VERSION

log = logging.getLogger("holdfast.serve")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if rest and options.run is not database.run_psql:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    options.rest = [word for word in rest if word != "--"]
    flags = {
        setting.name: value
        for setting in settings.settings()
        if (value := getattr(options, setting.name, None)) is not None
    }
    code = INTERRUPTED
    try:
        code = _run(flags, options)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception:
        if not interrupts.was_interrupted():
            raise
    return INTERRUPTED if interrupts.was_interrupted() else code


def _run(flags: dict[str, str], options: argparse.Namespace) -> int:
    try:
        config = environment.load(flags)
        if options.run is not _serve:
            interrupts.raise_on_interrupt()
        code: int = options.run(config, options)
    except (ConfigError, EmbeddedError) as error:
        if not interrupts.was_interrupted():
            print_status(f"holdfast: {error}")
        return int(options.failure_code)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="holdfast", description="A Responses API server that never forgets."
    )
    parser.add_argument("--version", action="version", version=f"holdfast {VERSION}")
    commands = parser.add_subparsers(required=True, metavar="command")
    add_command(commands, "serve", "serve a model", _serve, all_settings=True)
    doctor.add_commands(commands)
    keys.add_commands(commands)
    tenants.add_commands(commands)
    prices.add_commands(commands)
    prompts.add_commands(commands)
    schema.add_commands(commands)
    webhooks.add_commands(commands)
    audit.add_commands(commands)
    trail.add_commands(commands)
    database.add_purge(commands)
    erase.add_commands(commands)
    backup.add_dump_and_restore(commands)
    transfer.add_commands(commands)
    database.add_storage(commands)
    database.add_psql(commands)
    return parser


def _serve(config: Config, options: argparse.Namespace) -> int:
    """`holdfast serve`: serves a model until SIGTERM or SIGINT."""
    # Imported here because they import the web framework, which other commands do not need.
    from server.logs.handler import configure_logging
    from server.process.serve import serve

    interrupts.raise_on_interrupt()
    configure_logging(config.log_level, config.log_format, access=config.access_log == "on")
    if config.log_format == "text":
        return serve(config, print_status)
    try:
        return serve(config, lambda line: log.info("%s", line.strip()))
    except (ConfigError, EmbeddedError) as error:
        log.critical("%s", error)
        return int(options.failure_code)
