"""`erase`, `export` and `import`: everything of a tenant, or of one of its end users."""

import argparse
import os
import sys

from server.administration import audited_erasure
from server.caller import check_tenant
from server.cli import command as cli
from server.cli.options import whole_number
from server.configuration.settings import Config
from server.errors import ConfigError
from server.maintenance.erasure import Outcome
from server.maintenance.export_lines import export
from server.maintenance.import_lines import MAX_LINE, BadLine, import_lines
from server.store.database_errors import DatabaseError, first_line
from server.store.erasure.subject import Subject
from server.store.transfer import export_snapshot

DEFAULT_SECONDS = 3600


def add_commands(commands: cli.Subcommands) -> None:
    says = "remove everything of a tenant, or of one of its end users, for good"
    erased = cli.add_command(commands, "erase", says, _erase)
    says = "write a tenant's data to standard output, as lines of JSON"
    exported = cli.add_command(commands, "export", says, _export)
    for command in (erased, exported):
        command.add_argument("--tenant", required=True)
        says = "only objects of this end user: the `user` or `safety_identifier` of the requests"
        command.add_argument("--user", help=says)
    erased.add_argument("--dry-run", action="store_true", help="only count what would be removed")
    erased.add_argument("--yes", action="store_true", help="do not ask")
    says = "keep a tenant's lines of the usage ledger, without users and ids of requests"
    erased.add_argument("--keep-usage", action="store_true", help=says)
    erased.add_argument(
        "--seconds",
        type=whole_number(1, 10**6, " of seconds"),
        default=DEFAULT_SECONDS,
        metavar="N",
        help="give up after so long, and go on with the next call (default: %(default)s)",
    )
    says = "add an export from standard input; existing objects stay"
    imported = cli.add_command(commands, "import", says, _import)
    imported.add_argument("--tenant", help="the tenant that gets it, in place of the export's own")


def _erase(config: Config, options: argparse.Namespace) -> None:
    subject = Subject(options.tenant, options.user, options.keep_usage)
    try:
        with cli.current_database(config) as (database, _), cli.refusals_as_sentences():
            audited_erasure.check_subject(subject)
            if options.dry_run:
                outcome = audited_erasure.count(database, subject, config.lease_seconds)
                _print(outcome)
                cli.print_status(f"Nothing was removed: {_unfinished(outcome)}.")
                return
            if not options.yes:
                _confirm(subject)
            actor, seconds = cli.this_user(), float(options.seconds)
            outcome = audited_erasure.erase(database, actor, subject, config.lease_seconds, seconds)
            locked_out = subject.user is None and audited_erasure.locked_out(database)
    except DatabaseError as error:
        raise ConfigError(
            f"The erasure could not go on: {first_line(error)}. Run it again; it goes on where it was."
        ) from error
    _print(outcome)
    if locked_out:
        cli.print_status(
            "No valid API key is left, and requests still need one; make one with: holdfast keys create"
        )
    if not outcome.complete:
        raise ConfigError(
            f"Something is left; {_unfinished(outcome)}. Run it again: it goes on where it was."
        )
    cli.print_status("Nothing is left. Backups made before now still have it.")


def _confirm(subject: Subject) -> None:
    """Has the operator type the name. Raises ConfigError without a terminal, or for another name."""
    name = subject.tenant if subject.user is None else subject.user
    if not sys.stdin.isatty():
        raise ConfigError("This removes data for good; say --yes, or --dry-run to see how much.")
    cli.print_status(f"This removes everything of {name!r}, for good. Type the name to go on:")
    if sys.stdin.readline().strip() != name:
        raise ConfigError("That is another name; nothing was removed.")


def _print(outcome: Outcome) -> None:
    for table, rows in sorted((+outcome.rows).items()):
        cli.print_result(f"{table}\t{rows}")
    for reader in outcome.readers:
        cli.print_status(
            f"The database user {reader} reads this tenant alone: holdfast db drop-user {reader}"
        )
    if outcome.keeps_trail:
        cli.print_status("The audit trail is as it was: this database user may not change it, its owner may.")


def _unfinished(outcome: Outcome) -> str:
    sentence = f"{outcome.unfinished} responses have not ended"
    if outcome.later_responses:
        sentence += f", {outcome.later_responses} responses of others went on from the user's"
    return sentence


def _export(config: Config, options: argparse.Namespace) -> None:
    subject = Subject(options.tenant, options.user)
    if sys.stdout.isatty():
        raise ConfigError("An export goes to a file: holdfast export --tenant NAME > FILE")
    with cli.current_database(config) as (database, _), cli.refusals_as_sentences():
        written = 0
        try:
            with export_snapshot(database) as connection:
                for line in export(connection, subject):
                    sys.stdout.buffer.write(line)
                    written += 1
            sys.stdout.buffer.flush()
        except DatabaseError as error:
            raise ConfigError(f"The export could not go on: {first_line(error)}. It is not whole.") from error
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that no flush fails at exit
            raise ConfigError(f"The export cannot be written: {error.strerror}. It is not whole.") from error
        with database.begin() as connection:
            cli.this_user().record(connection, "tenant.export", options.tenant, "", {"lines": written})
    cli.print_status(f"Exported {written - 2} objects. They are not encrypted.")


def _import(config: Config, options: argparse.Namespace) -> None:
    with cli.current_database(config) as (database, _), cli.refusals_as_sentences():
        if options.tenant is not None:
            check_tenant(options.tenant)
        try:
            lines = iter(lambda: sys.stdin.buffer.readline(MAX_LINE + 1), b"")  # one too long comes in pieces
            tenant, added = import_lines(database, lines, options.tenant)
        except BadLine as bad:
            raise ConfigError(f"{bad} Nothing was imported.") from bad
        except DatabaseError as error:
            raise ConfigError(f"Nothing was imported: {first_line(error)}.") from error
        with database.begin() as connection:
            cli.this_user().record(connection, "tenant.import", tenant, "", {"added": dict(added)})
    more = ", ".join(f"{count} {kind}" for kind, count in sorted((+added).items())) or "nothing"
    cli.print_status(f"Tenant {tenant} has {more} more.")
