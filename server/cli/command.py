"""Parts of the subcommands: `add_command` with its settings, `print_rows`, `current_database`."""

import argparse
import os
import pwd
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from server.configuration import settings
from server.configuration.settings import Config, Setting
from server.errors import ApiError, ConfigError

if TYPE_CHECKING:
    from server.administration.actor import Actor
    from server.limits.disk_space import Disk
    from server.process.open_database import OpenDatabase
    from server.protocol.administration.objects import Limited
    from server.store.database import Connection, Database

Subcommands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""The type that argparse's `add_subparsers` returns, for which argparse has no public name."""
Run: TypeAlias = Callable[[Config, argparse.Namespace], int | None]
"""A subcommand: returns the exit code, None for 0. Raises ConfigError or EmbeddedError."""

Row: TypeAlias = tuple[object, Sequence[str]]
"""An object of a list, and the cells of its line."""

WIDTH = 110
"""Columns of help texts, which a narrower terminal wraps."""
DATABASE_SETTINGS = ("data_dir", "database_url", "database_pooler", "database_direct_url")


def print_status(line: str) -> None:
    """Prints to standard error; standard output is for results."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201 - this is a command line


def print_result(line: str) -> None:
    """Prints to standard output."""
    print(line, flush=True)  # noqa: T201 - the result


def print_columns(*names: str) -> None:
    """Prints the names of columns to a terminal; programs get the lines alone."""
    if sys.stdout.isatty():
        print_result("\t".join(names).upper())


def print_rows(rows: Iterable[Row], columns: Sequence[str], *, as_json: bool) -> None:
    """Prints a line for each object: its columns, or the object as the admin API shows it."""
    if columns and not as_json:
        print_columns(*columns)
    for value, cells in rows:
        print_result(msgspec.json.encode(value).decode() if as_json else "\t".join(cells).rstrip())


def described_limits(limited: "Limited") -> str:
    """The limits, with what is used of budgets; empty without any."""
    parts = []
    if limited.requests_per_minute is not None:
        parts.append(f"{limited.requests_per_minute} requests/min")
    if limited.tokens_per_minute is not None:
        parts.append(f"{limited.tokens_per_minute} tokens/min")
    per = "in all" if limited.budget_period == "total" else f"a {limited.budget_period}"
    of_tokens = None if limited.budget_tokens is None else f"{limited.budget_tokens} tokens {per}"
    of_cost = None if limited.budget_cost is None else f"costs of {limited.budget_cost} {per}"
    for unit, budget in (("tokens", of_tokens), ("cost", of_cost)):
        if budget is not None:
            uses = [getattr(limited.budget, f"{use}_{unit}", 0) for use in ("spent", "reserved", "remaining")]
            standing = " ({} spent, {} reserved, {} left)".format(*uses)
            parts.append(budget + (standing if limited.budget is not None else ""))
    return ", ".join(parts)


def terminal_user() -> str:
    """The user of this machine who runs the command, in the audit trail."""
    try:
        return f"user:{pwd.getpwuid(os.getuid()).pw_name}"
    except KeyError:  # a container's user without an entry
        return f"user:{os.getuid()}"


def add_group(commands: Subcommands, name: str, help_text: str) -> Subcommands:
    """A command that only has subcommands, such as `holdfast keys`."""
    return commands.add_parser(name, help=help_text).add_subparsers(required=True, metavar="command")


def add_command(
    commands: Subcommands, name: str, help_text: str, run: Run, *, all_settings: bool = False
) -> argparse.ArgumentParser:
    """A command with flags for its settings: all of them and the model, or those that select the database."""
    wide = partial(argparse.HelpFormatter, max_help_position=34, width=WIDTH)
    sentence = help_text.capitalize() + "."
    command = commands.add_parser(name, help=help_text, description=sentence, formatter_class=wide)
    command.set_defaults(run=run, failure_code=1, command=command)
    shown = [each for each in settings.settings() if all_settings or each.name in DATABASE_SETTINGS]
    groups = {each.group: command.add_argument_group(each.group) for each in shown}
    for setting in shown:
        default = f"; default: {setting.default}" if setting.default is not None else ""
        groups[setting.group].add_argument(
            setting.flag,
            dest=setting.name,
            metavar=_metavar(setting),
            help=f"{setting.help}{default} [{setting.variable}]".replace("%", "%%"),
        )
    if all_settings:  # the model is a word of its own, as every server of models takes it
        command.usage = f"{command.prog} [MODEL] [--SETTING VALUE ...]"
        says = (
            "a model's folder, or the id of a hub's model (owner/name, owner/name@revision), downloaded "
            "where the cache lacks it; default: the demo model"
        )
        command.add_argument("MODEL", nargs="?", help=says)
    return command


def _metavar(setting: Setting) -> str:
    """The values of a setting in help texts: its choices, the kind of value, or what a text is."""
    if setting.choices:
        return "|".join(setting.choices)
    if setting.kind == "float":
        return "SECONDS" if "seconds" in setting.name else "NUMBER"
    last_word = setting.name.rpartition("_")[2].upper()
    return "MODEL" if setting.name == "model" else {"int": "N", "Path": "PATH"}.get(setting.kind, last_word)


@contextmanager
def opened_database(
    config: Config, say: Callable[[str], None] = lambda _line: None
) -> Iterator["OpenDatabase"]:
    """The running database, whatever its schema."""
    # Imported here for `holdfast --help`: it brings SQLAlchemy.
    from server.process.open_database import OpenDatabase

    with closing(OpenDatabase(config, say)) as opened:
        yield opened


@contextmanager
def current_database(config: Config) -> Iterator[tuple["Database", "Disk"]]:
    with opened_database(config) as opened:
        opened.make_current()
        with closing(opened.connect(1)) as database:
            yield database, opened.disk


@contextmanager
def transaction(config: Config) -> Iterator["Connection"]:
    """A transaction of the database, whose schema is current. Raises ConfigError for a refused change."""
    with current_database(config) as (database, _), refusals_as_sentences(), database.begin() as connection:
        yield connection


@contextmanager
def refusals_as_sentences() -> Iterator[None]:
    """Has refusals of a change end the command with their sentence."""
    try:
        yield
    except ApiError as error:
        raise ConfigError(str(error)) from error


def this_user() -> "Actor":
    from server.administration.actor import Actor

    return Actor(terminal_user())
