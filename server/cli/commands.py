"""The `holdfast` command. Exit codes: 0 done, 1 refused with a sentence, 2 wrong usage, 70 start me again.

`audit` says 1 of a database in which something is wrong, and 2 when it could not look.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Callable, Sequence

from server.caller import DEFAULT_TENANT
from server.cli import prompts
from server.cli import purge as purge_command
from server.cli.audit import add_arguments, audit
from server.configuration import settings as configuration
from server.configuration.settings import Config
from server.embedded_postgres.account import EmbeddedError
from server.embedded_postgres.binaries import psql_command
from server.errors import ConfigError
from server.http.authentication import make_key
from server.process import interrupts
from server.process.interrupts import INTERRUPTED
from server.process.open_database import OpenDatabase
from server.store import api_keys
from server.store.cluster import claims
from server.store.content import storage_usage
from server.store.database import Database
from server.store.disk_space import Disk
from server.version import VERSION

TENANT = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


def say(line: str) -> None:
    """To the person at the terminal; standard output is for results."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201 - this is a command line


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if rest and options.act is not _psql:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    options.rest = [word for word in rest if word != "--"]
    flags = {
        setting.name: value
        for setting in configuration.settings()
        if (value := getattr(options, setting.name, None)) is not None
    }
    code = INTERRUPTED
    try:
        code = _act(flags, options)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception:
        if not interrupts.was_interrupted():
            raise
    return INTERRUPTED if interrupts.was_interrupted() else code


def _act(flags: dict[str, str], options: argparse.Namespace) -> int:
    try:
        config = configuration.load(flags)
        if options.act is not _serve:
            interrupts.raise_on_interrupt()
        code: int = options.act(config, options)
    except (ConfigError, EmbeddedError) as error:
        if not interrupts.was_interrupted():
            say(f"holdfast: {error}")
        return int(options.refused)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="holdfast", description="A Responses API server that never forgets."
    )
    parser.add_argument("--version", action="version", version=f"holdfast {VERSION}")
    commands = parser.add_subparsers(required=True, metavar="command")
    _command(commands, "serve", "serve a model", _serve, everything=True)
    key_commands = commands.add_parser("keys", help="API keys").add_subparsers(
        required=True, metavar="command"
    )
    create = _command(key_commands, "create", "make a key and show it, once", _keys_create)
    create.add_argument("--tenant", default=DEFAULT_TENANT, help="whose key it is (default: %(default)s)")
    create.add_argument("--name", default="", help="a note for yourself")
    create.add_argument(
        "--priority-floor",
        type=_priority,
        default=0,
        metavar="N",
        help="the most urgent priority its requests may ask for; a lower number is more urgent (default: "
        "%(default)s, which everybody has)",
    )
    create.add_argument("--if-none", action="store_true", help="do nothing when a key exists already")
    _command(key_commands, "list", "list keys", _keys_list).add_argument("--tenant")
    revoke = _command(key_commands, "revoke", "end a key", _keys_revoke)
    revoke.add_argument("key_id")
    revoke.add_argument(
        "--end",
        action="store_true",
        help="cancel its stored responses that have not ended, too, on every replica",
    )
    prompt_commands = commands.add_parser("prompts", help="prompt templates").add_subparsers(
        required=True, metavar="command"
    )
    prompts.add_put_arguments(
        _command(prompt_commands, "put", "store a file as a version of a prompt", _prompts_put)
    )
    prompts.add_list_arguments(_command(prompt_commands, "list", "list prompts", _prompts_list))
    prompts.add_delete_arguments(
        _command(prompt_commands, "delete", "delete a prompt, or one version of it", _prompts_delete)
    )
    db_commands = commands.add_parser("db", help="the database").add_subparsers(
        required=True, metavar="command"
    )
    _command(db_commands, "upgrade", "bring the schema to this release's", _db_upgrade)
    add_arguments(_command(commands, "audit", "check every stored response; changes nothing", _audit))
    purge_command.add_arguments(_command(commands, "purge", "remove what has expired, now", _purge))
    _command(commands, "storage", "show how many bytes each tenant has stored", _storage)
    _command(commands, "psql", "open a SQL shell on the database; takes psql's own arguments", _psql)
    return parser


def _command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    told: str,
    act: Callable[[Config, argparse.Namespace], int],
    *,
    everything: bool = False,
) -> argparse.ArgumentParser:
    """A command with its settings: all of them, or those that say which database."""
    command = commands.add_parser(name, help=told, description=told.capitalize() + ".")
    command.set_defaults(act=act, refused=1)
    for setting in configuration.settings():
        if everything or setting.name in ("data_dir", "database_url"):
            choices = f" ({', '.join(setting.choices)})" if setting.choices else ""
            default = f"; default: {setting.default}" if setting.default is not None else ""
            command.add_argument(
                setting.flag,
                dest=setting.name,
                metavar="X",
                help=f"{setting.help}{choices}{default} [{setting.variable}]".replace("%", "%%"),
            )
    return command


def _serve(config: Config, _options: argparse.Namespace) -> int:
    from server.process.log_format import configure_logging
    from server.process.serve import serve

    interrupts.raise_on_interrupt()
    configure_logging(config.log_level)
    return serve(config, say)


def _priority(given: str) -> int:
    """A priority from the command line. Raises ValueError, of which argparse tells."""
    number = int(given)
    if abs(number) >= 2**31:
        raise ValueError(given)
    return number


def _with_database(config: Config, act: Callable[[Database, Disk], int]) -> int:
    opened = OpenDatabase(config, lambda _line: None)
    try:
        opened.make_current()
        database = Database(opened.url, pool_size=1)
        try:
            return act(database, opened.disk)
        finally:
            database.close()
    finally:
        opened.close()


def _keys_create(config: Config, options: argparse.Namespace) -> int:
    if not TENANT.fullmatch(options.tenant):
        raise ConfigError(
            "A tenant's name is 1 to 63 of a-z, 0-9, - and _, and begins with a letter or digit."
        )

    def create(database: Database, _disk: Disk) -> int:
        with database.begin() as connection:
            if options.if_none and api_keys.any_exist(connection):
                say("A key exists already.")
                return 0
            key = make_key()
            api_keys.insert_key(
                connection, options.tenant, key.id, options.name, key.digest, options.priority_floor
            )
        say(f"Key {key.id} of tenant {options.tenant}; it is shown this once:")
        print(key.text)  # noqa: T201 - the result
        return 0

    return _with_database(config, create)


def _keys_list(config: Config, options: argparse.Namespace) -> int:
    def show(database: Database, _disk: Disk) -> int:
        with database.begin() as connection:
            found = api_keys.list_all(connection, options.tenant)
        for key in found:
            state = f"revoked {key.revoked_at:%Y-%m-%d}" if key.revoked_at else "valid"
            used = f"used {key.last_used_at:%Y-%m-%d %H:%M}" if key.last_used_at else "never used"
            columns = (key.id, key.tenant, f"made {key.created_at:%Y-%m-%d}", used, state, key.name)
            print("\t".join(columns).rstrip())  # noqa: T201 - the result
        return 0

    return _with_database(config, show)


def _keys_revoke(config: Config, options: argparse.Namespace) -> int:
    def revoke(database: Database, _disk: Disk) -> int:
        key_id = options.key_id
        with database.begin() as connection:
            if not api_keys.revoke(connection, key_id) and not (
                options.end and api_keys.is_revoked(connection, key_id)
            ):
                raise ConfigError(f"There is no valid key {key_id!r}; `holdfast keys list` shows them.")
        say(f"Key {key_id} is revoked.")
        if options.end:
            ended = database.retry(lambda connection: claims.request_cancel_of_key(connection, key_id))
            say(f"{ended} of its responses had not ended and are cancelled within about a second.")
        return 0

    return _with_database(config, revoke)


def _prompts_put(config: Config, options: argparse.Namespace) -> int:
    def put(database: Database, _disk: Disk) -> int:
        say(prompts.put(database, options))
        return 0

    return _with_database(config, put)


def _prompts_list(config: Config, options: argparse.Namespace) -> int:
    def show(database: Database, _disk: Disk) -> int:
        for line in prompts.listed(database, options):
            print(line)  # noqa: T201 - the result
        return 0

    return _with_database(config, show)


def _prompts_delete(config: Config, options: argparse.Namespace) -> int:
    def delete(database: Database, _disk: Disk) -> int:
        say(prompts.delete(database, options))
        return 0

    return _with_database(config, delete)


def _db_upgrade(config: Config, _options: argparse.Namespace) -> int:
    opened = OpenDatabase(config, say)
    try:
        opened.upgrade()
        say("The schema is current.")
        return 0
    finally:
        opened.close()


def _audit(config: Config, options: argparse.Namespace) -> int:
    opened = OpenDatabase(config, lambda _line: None)
    try:
        return audit(opened.url, options, say)
    finally:
        opened.close()


def _purge(config: Config, options: argparse.Namespace) -> int:
    def purge(database: Database, disk: Disk) -> int:
        print(purge_command.run(database, disk, config, options))  # noqa: T201 - the result
        return 0

    return _with_database(config, purge)


def _storage(config: Config, _options: argparse.Namespace) -> int:
    def show(database: Database, _disk: Disk) -> int:
        for tenant, stored in database.read(storage_usage.totals):
            print(f"{tenant}\t{stored}")  # noqa: T201 - the result
        return 0

    return _with_database(config, show)


def _psql(config: Config, options: argparse.Namespace) -> int:
    opened = OpenDatabase(config, say)
    try:
        command, secrets = psql_command(opened.url)
        environment = configuration.child_environment(secrets)
        return subprocess.run([*command, *options.rest], env=environment, check=False).returncode
    finally:
        opened.close()
