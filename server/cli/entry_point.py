"""The `holdfast` command: its parser, its exit codes, and `holdfast serve`.

Exit codes: 0 done, 1 refused with a sentence, 2 wrong usage, 70 start the process again. `audit` exits with 1
if it finds violations and with 2 if it cannot run, `doctor` with 1 if it finds a problem.
"""

import argparse
import importlib
import logging
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import NoReturn

from server.cli.command import add_command, print_status
from server.configuration import environment, settings
from server.configuration.settings import Config
from server.embedded_postgres.system_account import EmbeddedError
from server.errors import ConfigError
from server.process import interrupts
from server.process.interrupts import INTERRUPTED
from server.version import VERSION

log = logging.getLogger("holdfast.serve")


_COMMANDS = (
    ("serve", "serve a model", ""),
    ("doctor", "load the model, check it on this machine and ask the database; changes nothing", "doctor"),
    ("models", "list the models in the Hugging Face cache, and the engine that serves each", "models"),
    ("keys", "API keys", "keys"),
    ("tenants", "tenants' settings", "tenants"),
    ("prices", "prices of models", "prices"),
    ("prompts", "prompt templates", "prompts"),
    ("db", "the database", "db.schema"),
    ("webhooks", "webhook endpoints", "webhooks"),
    ("audit", "check every stored response; changes nothing", "audit"),
    ("trail", "show changes made by operators and callers", "trail"),
    ("purge", "remove what has expired, now", "database"),
    ("erase", "remove everything of a tenant, or of one of its end users, for good", "erase_export_import"),
    ("dump", "write a backup of the database, which may be in use", "db.backup"),
    ("restore", "make the database from a backup", "db.backup"),
    ("export", "write a tenant's data to standard output, as lines of JSON", "erase_export_import"),
    ("import", "add an export from standard input; existing objects stay", "erase_export_import"),
    ("storage", "show how many bytes each tenant has stored", "database"),
    ("psql", "open a SQL shell that only reads; takes psql's own arguments", "database"),
)
"""Name, sentence and module of `server.cli`. Only the module of the command that runs is imported: together
they import most of the server."""


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = _parser(next((word for word in words if not word.startswith("-")), ""))
    options, rest = parser.parse_known_args(words)
    if rest and not getattr(options, "takes_rest", False):
        _refuse(options.command, rest)
    options.rest = [word for word in rest if word != "--"]
    names = [setting.name for setting in settings.settings()]
    flags = {name: value for name in names if (value := getattr(options, name, None)) is not None}
    if (model := getattr(options, "MODEL", None)) is not None:
        flags["model"] = model
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
        code: int = options.run(config, options) or 0
    except (ConfigError, EmbeddedError) as error:
        if not interrupts.was_interrupted():
            print_status(f"holdfast: {error}")
        return int(options.failure_code)
    return code


def _refuse(command: argparse.ArgumentParser, rest: Sequence[str]) -> NoReturn:
    """Exits with 2 for arguments that the command does not have, with the nearest that it has."""
    flags = {word.strip(",[]") for word in command.format_help().split() if word.strip("[").startswith("--")}
    near = get_close_matches(rest[0].partition("=")[0], sorted(flags), n=1)
    meant = f"; did you mean {near[0]}?" if near else ""
    command.error(f"unrecognized arguments: {' '.join(rest)}{meant}")


def _parser(chosen: str | None = None) -> argparse.ArgumentParser:
    """The parser. With a chosen command it is whole, and the others have names and sentences only."""
    parser = argparse.ArgumentParser(
        prog="holdfast", description="A Responses API server that never forgets."
    )
    parser.add_argument("--version", action="version", version=f"holdfast {VERSION}")
    commands = parser.add_subparsers(required=True, metavar="command")
    own = {module for name, _, module in _COMMANDS if name == chosen}
    for name, sentence, module in _COMMANDS:
        if name in commands.choices:
            continue  # another command of its module has added it
        if chosen is not None and module not in own:
            commands.add_parser(name, help=sentence)
        elif not module:
            add_command(commands, name, sentence, _serve, all_settings=True)
        else:
            importlib.import_module(f"server.cli.{module}").add_commands(commands)
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
