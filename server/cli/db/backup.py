"""`dump`, `restore`, `db hold` and `db adopt`: copies of the database, and what runs in them."""

import argparse
from contextlib import closing
from pathlib import Path

from server.cli import command as cli
from server.configuration.settings import Config
from server.embedded_postgres import dumps
from server.embedded_postgres.embedded_server import DATABASE
from server.errors import ConfigError
from server.store import database_roles
from server.store.administration import audit_trail
from server.store.cluster import installation
from server.store.database import Database
from server.store.database_roles import HIDDEN_COLUMNS, HIDDEN_TABLES
from server.store.schema.schema_status import schema_state
from server.store.schema.upgrade import upgrade

RESTORED = "holdfast_restored"
"""The database of the embedded cluster that a restore fills."""


def add_commands(commands: cli.Subcommands) -> None:
    dump = cli.add_command(commands, "dump", "write a backup of the database, which may be in use", _dump)
    dump.add_argument("file", type=Path)
    says = "without API keys, seal keys and other data that no reader may see"
    dump.add_argument("--without-secrets", action="store_true", help=says)
    restore = cli.add_command(commands, "restore", "make the database from a backup", _restore)
    restore.add_argument("file", type=Path)
    says = "replace an embedded database that has something in it"
    restore.add_argument("--force", action="store_true", help=says)


def add_to_db(group: cli.Subcommands) -> None:
    cli.add_command(group, "hold", "treat the database as a restored copy: hold unfinished responses", _hold)
    adopt = cli.add_command(group, "adopt", "go on with the responses held in a restored copy", _adopt)
    adopt.add_argument("--cancel", action="store_true", help="cancel it instead")


def _dump(config: Config, options: argparse.Namespace) -> None:
    secret = sorted(HIDDEN_TABLES | HIDDEN_COLUMNS.keys())
    with cli.opened_database(config) as opened:
        size = dumps.write_dump(opened.session_url, options.file, secret if options.without_secrets else ())
    if options.without_secrets:
        cli.print_status(f"Wrote {size} bytes to {options.file}, without {' and '.join(secret)}.")
    else:
        cli.print_status(
            f"Wrote {size} bytes to {options.file}. It holds everything, also the key of sealed content and "
            "the digests of API keys: keep it as you keep the database."
        )


def _restore(config: Config, options: argparse.Namespace) -> None:
    dumps.check_dump(options.file)
    with cli.opened_database(config, cli.print_status) as opened:
        is_filled = dumps.has_tables(opened.session_url)
        if is_filled and not opened.is_embedded:
            raise ConfigError("This database has something in it; make an empty one, and restore into that.")
        if is_filled and not options.force:
            raise ConfigError(
                "This database has something in it; name another data directory, or replace it with --force."
            )
        if is_filled and dumps.is_in_use(opened.session_url):
            raise ConfigError("This database is in use; stop its servers first.")
        if opened.is_embedded:  # a new database, which then takes the other's name and place
            with dumps.replacement(opened.url_of("postgres"), DATABASE, RESTORED):
                held = _fill(opened.url_of(RESTORED), options.file)
        else:
            held = _fill(opened.session_url, options.file)
    cli.print_status(f"Restored. {advice_for_copy(held)}")


def advice_for_copy(held: int) -> str:
    """Return advice on the unfinished background responses of a restored copy."""
    return (
        f"{held} unfinished background responses are held, because their tools' calls may have been made by "
        "the original: `holdfast db adopt` goes on with them, `holdfast db adopt --cancel` ends them."
    )


def _fill(url: str, source: Path) -> int:
    """Restores into an empty database and holds what is unfinished there; returns how many."""
    database_roles.create_groups(url)
    dumps.read_dump(url, source)
    if not dumps.is_of_holdfast(url):
        raise ConfigError(f"{source} is a dump of something else than Holdfast.")
    state = schema_state(url)
    if state == "unknown":
        raise ConfigError(f"{source} was made by a newer release of Holdfast; restore it with that one.")
    if state == "behind":
        upgrade(url)
    database_roles.create_roles(url)
    with closing(Database(url, pool_size=1)) as database, database.begin() as connection:
        held = installation.hold(connection)
        audit_trail.record(connection, cli.terminal_user(), "database.restore", details={"held": held})
    return held


def _hold(config: Config, _options: argparse.Namespace) -> None:
    with cli.current_database(config) as (database, _), database.begin() as connection:
        held = installation.hold(connection)
        audit_trail.record(connection, cli.terminal_user(), "database.hold", details={"held": held})
    cli.print_status(advice_for_copy(held))


def _adopt(config: Config, options: argparse.Namespace) -> None:
    with cli.current_database(config) as (database, _), database.begin() as connection:
        held = installation.adopt(connection, cancel=options.cancel)
        details = {"held": held, "cancel": options.cancel}
        audit_trail.record(connection, cli.terminal_user(), "database.adopt", details=details)
    cli.print_status(f"{held} responses {'are cancelled' if options.cancel else 'go on'}.")
