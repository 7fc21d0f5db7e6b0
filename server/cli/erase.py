"""`erase`: removes everything of a tenant, or of one of its end users."""

import argparse
import sys

from server.administration import erasure
from server.cli.command import (
    Subcommands,
    add_command,
    current_database,
    print_result,
    print_status,
    refusals_as_sentences,
    this_user,
)
from server.cli.option_types import whole_number
from server.configuration.settings import Config
from server.errors import ConfigError
from server.maintenance.erasure import Outcome
from server.store.database_errors import DatabaseError, first_line
from server.store.erasure.subject import Subject

DEFAULT_SECONDS = 3600


def add_commands(commands: Subcommands) -> None:
    command = add_command(
        commands, "erase", "remove everything of a tenant, or of one of its end users, for good", _erase
    )
    command.add_argument("--tenant", required=True)
    command.add_argument(
        "--user", help="only objects of this end user: the `user` or `safety_identifier` of the requests"
    )
    command.add_argument("--dry-run", action="store_true", help="only count what would be removed")
    command.add_argument("--yes", action="store_true", help="do not ask")
    command.add_argument(
        "--keep-usage",
        action="store_true",
        help="keep a tenant's lines of the usage ledger, without users and ids of requests",
    )
    command.add_argument(
        "--seconds",
        type=whole_number(1, 10**6, " of seconds"),
        default=DEFAULT_SECONDS,
        metavar="N",
        help="give up after so long, and go on with the next call (default: %(default)s)",
    )


def _erase(config: Config, options: argparse.Namespace) -> int:
    subject = Subject(options.tenant, options.user, options.keep_usage)
    try:
        with current_database(config) as (database, _), refusals_as_sentences():
            erasure.check_subject(subject)
            if options.dry_run:
                outcome = erasure.count(database, subject, config.lease_seconds)
                _print(outcome)
                print_status(f"Nothing was removed: {_described(outcome)}.")
                return 0
            if not options.yes:
                _confirm(subject)
            outcome = erasure.erase(
                database, this_user(), subject, config.lease_seconds, float(options.seconds)
            )
            locked_out = subject.user is None and erasure.locked_out(database)
    except DatabaseError as error:
        raise ConfigError(
            f"The erasure could not go on: {first_line(error)}. Run it again; it goes on where it was."
        ) from error
    _print(outcome)
    if locked_out:
        print_status(
            "No valid API key is left, and requests still need one; make one with: holdfast keys create"
        )
    if not outcome.complete:
        raise ConfigError(f"Something is left; {_described(outcome)}. Run it again: it goes on where it was.")
    print_status("Nothing is left. Backups made before now still have it.")
    return 0


def _confirm(subject: Subject) -> None:
    """Has the operator type the name. Raises ConfigError without a terminal, or for another name."""
    name = subject.tenant if subject.user is None else subject.user
    if not sys.stdin.isatty():
        raise ConfigError("This removes data for good; say --yes, or --dry-run to see how much.")
    print_status(f"This removes everything of {name!r}, for good. Type the name to go on:")
    if sys.stdin.readline().strip() != name:
        raise ConfigError("That is another name; nothing was removed.")


def _print(outcome: Outcome) -> None:
    for table, rows in sorted((+outcome.rows).items()):
        print_result(f"{table}\t{rows}")
    for reader in outcome.readers:
        print_status(f"The database user {reader} reads this tenant alone: holdfast db drop-user {reader}")
    if outcome.keeps_trail:
        print_status("The audit trail is as it was: this database user may not change it, its owner may.")


def _described(outcome: Outcome) -> str:
    sentence = f"{outcome.unfinished} responses have not ended"
    if outcome.later_responses:
        sentence += f", {outcome.later_responses} responses of others went on from the user's"
    return sentence
