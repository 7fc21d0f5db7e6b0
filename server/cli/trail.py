"""`holdfast trail`: prints the audit trail, oldest first."""

import argparse

import msgspec

from server.administration.objects_from_rows import trail_object
from server.cli.command import Subcommands, add_command, print_rows, transaction
from server.cli.options import DURATIONS, duration, refuse_unknown_tenant, whole_number
from server.configuration.settings import Config
from server.protocol.list_pages import PageRequest
from server.store.administration.audit_trail import Entry, EntryFilter, entries_page
from server.store.database import clock

MAX_LISTED = 10_000


def add_commands(commands: Subcommands) -> None:
    command = add_command(commands, "trail", "show changes made by operators and callers", _trail)
    says = f"only entries newer than AGE: {DURATIONS}"
    command.add_argument("--since", type=duration, metavar="AGE", help=says)
    command.add_argument("--tenant", help="only entries of this tenant")
    says = "only actions that begin so: `key.`, `response.delete`"
    command.add_argument("--action", metavar="PREFIX", help=says)
    number, says = whole_number(1, MAX_LISTED), "the newest N (default: %(default)s)"
    command.add_argument("--limit", type=number, default=MAX_LISTED, metavar="N", help=says)
    command.add_argument("--json", action="store_true", help="one JSON object a line")


def _trail(config: Config, options: argparse.Namespace) -> None:
    """Prints a line for each entry: time, actor, action, tenant, target, details."""
    with transaction(config) as connection:
        since = None if options.since is None else clock(connection) - options.since
        chosen = EntryFilter(since=since, tenant=options.tenant, action=options.action)
        newest = entries_page(connection, chosen, PageRequest(None, options.limit, newest_first=True))
        if not newest:
            refuse_unknown_tenant(connection, options.tenant)
    columns = ("at", "actor", "action", "tenant", "target", "details")
    rows = ((trail_object(entry), _columns(entry)) for entry in reversed(newest[: options.limit]))
    print_rows(rows, columns, as_json=options.json)


def _columns(entry: Entry) -> list[str]:
    return [
        f"{entry.at:%Y-%m-%d %H:%M:%S}",
        entry.actor,
        entry.action,
        entry.tenant or "-",
        entry.target or "-",
        msgspec.json.encode(entry.details).decode() if entry.details else "",
    ]
