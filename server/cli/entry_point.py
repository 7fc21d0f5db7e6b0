"""The `holdfast` command: its parser and exit codes.

Exit codes: 0 done, 1 refused with a sentence, 2 wrong usage, 70 start the process again. `audit` exits with 1
if it finds violations and with 2 if it cannot run.
"""

import argparse
from collections.abc import Sequence

from server.cli import audit, db, keys, prompts, psql, purge, serve, storage
from server.cli.command import print_status
from server.configuration import settings
from server.embedded_postgres.account import EmbeddedError
from server.errors import ConfigError
from server.process import interrupts
from server.process.interrupts import INTERRUPTED
from server.version import VERSION


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if rest and options.run is not psql.run:
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
        config = settings.load(flags)
        if options.run is not serve.run:
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
    for module in (serve, keys, prompts, db, audit, purge, storage, psql):
        module.add_commands(commands)
    return parser
