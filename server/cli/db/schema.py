"""`holdfast db status`, `db upgrade`, `db downgrade`, `db text-search`: the schema's revision and indexes."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

from server.cli import command as cli
from server.cli.db import backup, database_roles
from server.cli.options import whole_number
from server.configuration.settings import Config
from server.errors import ConfigError
from server.process.open_database import lock_advice
from server.store.database_errors import DatabaseError, in_one_line
from server.store.schema import concurrent_indexes, upgrade
from server.store.schema.schema_session import connect, wait_for_connections
from server.store.schema.schema_status import (
    LivingReplica,
    SchemaReport,
    SchemaState,
    current_revision,
    losses,
    needing,
    read_report,
    state_of,
)
from server.store.schema.upgrade import Migration
from server.version import VERSION

START_SECONDS = 30.0
"""Time for a database to accept connections, such as one that starts beside this command."""
MAX_WAIT_SECONDS = 86400


def add_commands(commands: cli.Subcommands) -> None:
    """Adds the group `holdfast db`."""
    group = cli.add_group(commands, "db", "the database")
    cli.add_command(group, "status", "show the schema's revision and obstacles to an upgrade", _status)
    command = cli.add_command(group, "upgrade", "bring the schema to this release's", _upgrade)
    _add_wait(command)
    command.add_argument("--sql", action="store_true", help="print the SQL that would run, and run nothing")
    says = "with --sql: from this revision, or base, on"
    command.add_argument("--from", dest="start", metavar="REVISION", help=says)
    command = cli.add_command(group, "downgrade", "undo the last migration", _downgrade)
    _add_wait(command)
    says = "do it; where data would be lost, name the revision that is undone"
    command.add_argument("--yes", nargs="?", const="", metavar="REVISION", help=says)
    database_roles.add_commands(group)
    backup.add_to_db(group)
    says = "make or drop an index for words in the history"
    command = cli.add_command(group, "text-search", says, _text_search)
    command.add_argument("state", choices=("on", "off"))


def _add_wait(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--wait",
        type=whole_number(0, MAX_WAIT_SECONDS, " of seconds"),
        default=upgrade.UPGRADE_S,
        metavar="SECONDS",
        help=f"for locks that other transactions hold (default: {upgrade.UPGRADE_S:.0f})",
    )


def _upgrade(config: Config, options: argparse.Namespace) -> int:
    if options.start is not None and not options.sql:
        raise ConfigError("--from is for --sql; without it the upgrade begins where the database is.")
    if options.sql:
        return _print_sql(config, options.start)
    _await_database(config)
    with cli.opened_database(config, cli.print_status) as opened:
        with _answers(), connect(opened.url) as connection:
            before = current_revision(connection)
        if opened.upgrade(options.wait):
            cli.print_status(applied(before, [migration.revision for migration in upgrade.migrations()]))
        else:
            cli.print_status("A newer release made the schema, on which this one can serve; nothing to do.")
    return 0


def applied(before: str | None, revisions: list[str]) -> str:
    """A sentence about an upgrade from a revision, None for an empty database, to the last one. Pure."""
    missing = revisions[revisions.index(before) + 1 if before else 0 :]
    if not missing:
        return f"The schema is current, at {revisions[-1]}; nothing was to do."
    if len(missing) == 1:
        return f"Applied the migration {missing[0]}. The schema is current."
    return f"Applied {len(missing)} migrations, {missing[0]} to {missing[-1]}. The schema is current."


def _await_database(config: Config) -> None:
    url = config.database_direct_url or config.database_url
    if url is not None:
        wait_for_connections(
            url, START_SECONDS, lambda: cli.print_status("The database accepts no connections yet; waiting.")
        )


def _print_sql(config: Config, start: str | None) -> int:
    if start is None:
        with cli.opened_database(config) as opened, _answers(), connect(opened.url) as connection:
            start = current_revision(connection)
    known = {migration.revision for migration in upgrade.migrations()}
    if start not in (None, "base", *known):
        raise ConfigError(f"This release has no revision {start!r}.")
    if start != upgrade.newest_revision():
        cli.print_result(upgrade.upgrade_sql(start).rstrip())
    return 0


def _status(config: Config, _options: argparse.Namespace) -> None:
    with cli.opened_database(config) as opened, _answers(), connect(opened.url) as connection:
        revision, state = current_revision(connection), state_of(connection)
        report = read_report(connection)
    for line in describe(revision, state, upgrade.migrations(), report):
        cli.print_result(line)


def describe(
    revision: str | None, state: SchemaState, migrations: list[Migration], report: SchemaReport
) -> Iterator[str]:
    """The lines of `db status`: a word, a tab and what it is about. Pure."""
    sentence = {
        "current": "this release's",
        "behind": "behind this release; run: holdfast db upgrade",
        "newer": "made by a newer release; this one can serve on it",
        "unknown": "made by a newer release; this one cannot serve on it",
    }[state]
    yield f"database\t{revision or 'empty'}\t{sentence}"
    yield f"release\t{migrations[-1].revision}\tholdfast {VERSION}"
    known = [migration.revision for migration in migrations]
    if state == "behind":
        for migration in migrations[known.index(revision) + 1 if revision else 0 :]:
            yield f"pending\t{migration.revision}\t{migration.kind}: {migration.title}"
    for replica in report.replicas:
        yield (
            f"replica\t{replica.id}\tholdfast {replica.version}, needs {replica.revision}, process"
            f" {replica.pid} of {replica.host}, beat {replica.silent_seconds:.1f} s ago"
        )
    for index in report.invalid_indexes:
        yield f"invalid index\t{index}\tleft by an interrupted build; the next upgrade builds it again"
    for transaction in report.transactions:
        age = "" if transaction.seconds is None else f", open for {transaction.seconds:.0f} s"
        yield (
            f"transaction\t{transaction.pid or 'prepared'}\t{transaction.name} ({transaction.state}{age}):"
            " migrations of its tables wait for it"
        )


def _downgrade(config: Config, options: argparse.Namespace) -> None:
    with cli.opened_database(config, cli.print_status) as opened, _answers():
        with connect(opened.session_url) as connection:
            migration = _last(current_revision(connection))
            needed_by = needing(read_report(connection).replicas, migration)
            reason = refusal(migration, options.yes, needed_by, list(losses(connection, migration)))
        if reason is not None:
            raise ConfigError(reason)
        try:
            upgrade.downgrade(opened.migration_url(), migration, options.wait)
        except DatabaseError as error:
            raise ConfigError(f"The schema cannot be downgraded: {lock_advice(error)}") from error
    cli.print_status(f"The schema is back at {migration.previous or 'nothing'}.")


def _last(revision: str | None) -> Migration:
    """The migration that brought the database there. Raises ConfigError."""
    if revision is None:
        raise ConfigError("The database has no schema, so there is nothing to undo.")
    for migration in upgrade.migrations():
        if migration.revision == revision:
            return migration
    raise ConfigError(
        f"A newer release made the revision {revision}, and only that release can undo it: run its"
        " `holdfast db downgrade`."
    )


def refusal(
    migration: Migration, yes: str | None, needed_by: list[LivingReplica], lost: list[str]
) -> str | None:
    """Why the migration is not undone; None if it may be. `yes` is None without --yes, empty for it alone."""
    undo = f"{migration.revision} ({migration.title})"
    if needed_by:
        names = ", ".join(f"{replica.id} on {replica.host}" for replica in needed_by[:3])
        more = f" and {len(needed_by) - 3} more" if len(needed_by) > 3 else ""
        return f"Replicas of a release that needs {undo} are serving: {names}{more}; stop them first."
    if yes and yes != migration.revision:
        return f"The last migration is {undo}, not {yes}."
    if lost and not yes:
        go_ahead = f"holdfast db downgrade --yes {migration.revision}"
        return f"Undoing {undo} deletes the contents of {', '.join(lost)}; if they may go: {go_ahead}"
    if yes is None:
        return f"This undoes {undo}; go ahead with: holdfast db downgrade --yes"
    return None


@contextmanager
def _answers() -> Iterator[None]:
    """Raises the database's errors as ConfigError."""
    try:
        yield
    except DatabaseError as error:
        raise ConfigError(f"The database refused: {in_one_line(error)}.") from error


def _text_search(config: Config, options: argparse.Namespace) -> None:
    with cli.opened_database(config, cli.print_status) as opened:
        opened.make_current()
        turn = concurrent_indexes.index_words if options.state == "on" else concurrent_indexes.drop_words
        try:
            turn(opened.session_url)
        except DatabaseError as error:
            raise ConfigError(
                f"The database refused: {in_one_line(error)}. Nothing is lost; try again, without long"
                " transactions beside it."
            ) from error
    cli.print_status(f"Text search is {options.state}.")
