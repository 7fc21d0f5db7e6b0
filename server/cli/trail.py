"""`holdfast trail`: prints the audit trail, oldest first."""

import argparse

import msgspec

from server.cli.audit import AGE_HELP, read_age
from server.cli.command import Subcommands, add_command, current_database, print_columns, print_result
from server.cli.option_types import refuse_unknown_tenant, whole_number
from server.configuration.settings import Config
from server.store.administration import audit_trail
from server.store.administration.audit_trail import MAX_LISTED, Entry


def add_commands(commands: Subcommands) -> None:
    command = add_command(commands, "trail", "show what operators and callers have changed", _trail)
    command.add_argument("--since", type=read_age, metavar="AGE", help=f"only what is newer: {AGE_HELP}")
    command.add_argument("--tenant", help="only what concerns this tenant")
    command.add_argument(
        "--action", default="", metavar="PREFIX", help="only actions that begin so: `key.`, `response.delete`"
    )
    command.add_argument(
        "--limit",
        type=whole_number(1, MAX_LISTED),
        default=MAX_LISTED,
        metavar="N",
        help="the newest N (default: %(default)s)",
    )
    command.add_argument("--json", action="store_true", help="one JSON object a line")


def _trail(config: Config, options: argparse.Namespace) -> int:
    """Prints a line for each entry: time, actor, action, tenant, target, details."""
    with current_database(config) as (database, _), database.begin() as connection:
        found = list(
            audit_trail.entries(
                connection,
                age=options.since,
                tenant=options.tenant,
                action=options.action,
                limit=options.limit,
            )
        )
        if not found:
            refuse_unknown_tenant(connection, options.tenant)
    if not options.json:
        print_columns("at", "actor", "action", "tenant", "target", "details")
    for entry in found:
        print_result(_json(entry) if options.json else _line(entry))
    return 0


def _line(entry: Entry) -> str:
    details = msgspec.json.encode(entry.details).decode() if entry.details else ""
    columns = (
        f"{entry.at:%Y-%m-%d %H:%M:%S}",
        entry.actor,
        entry.action,
        entry.tenant or "-",
        entry.target or "-",
        details,
    )
    return "\t".join(columns).rstrip()


def _json(entry: Entry) -> str:
    return msgspec.json.encode(entry).decode()
