"""`holdfast audit`: checks the invariants of all stored responses, in a database that may be in use."""

import argparse
from collections.abc import Iterable
from contextlib import closing
from datetime import timedelta

import msgspec

from server.cli.command import Subcommands, add_command, opened_database, print_result, print_status
from server.cli.options import DURATIONS, moment_or_duration, refuse_unknown_tenant, whole_number
from server.configuration.settings import Config
from server.errors import ConfigError
from server.maintenance.audit_responses import INVARIANTS, AuditLimits, Violation
from server.maintenance.audit_run import Tally, audit_connection, violations
from server.process.open_database import OpenDatabase
from server.protocol.ids import response_id
from server.store import audit_snapshot as store
from server.store.audit_snapshot import Scope
from server.store.database import Connection, clock
from server.store.database_errors import DatabaseError, in_one_line
from server.store.schema.schema_status import BEHIND, UNKNOWN, schema_state

CLEAN, VIOLATED, COULD_NOT_RUN = 0, 1, 2


def add_commands(commands: Subcommands) -> None:
    command = add_command(commands, "audit", "check every stored response; changes nothing", _run)
    command.set_defaults(failure_code=COULD_NOT_RUN)
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    command.epilog = "invariants:\n" + "\n".join(f"  {name:4} {text}" for name, text in INVARIANTS.items())
    command.add_argument("--tenant", help="only this tenant's responses")
    says = f"only responses created since: {DURATIONS}, or 2026-11-20T08:00 (UTC)"
    command.add_argument("--since", type=moment_or_duration, help=says)
    says, count = "only the newest N responses of each tenant", whole_number(1, 10**9, " of responses")
    command.add_argument("--limit", type=count, help=says)
    command.add_argument(
        "--quick", action="store_true", help="neither replay streams from the middle nor hash pictures"
    )
    command.add_argument("--json", action="store_true", help="one JSON object a line, the summary last")


def _run(config: Config, options: argparse.Namespace) -> int:
    with opened_database(config) as opened:
        return _audit(opened, options)


def _audit(opened: OpenDatabase, options: argparse.Namespace) -> int:
    """Prints a line for each violation, then a summary; returns the exit code. Raises ConfigError."""
    tally = Tally()
    try:
        _require_current(opened.url)
        opened.check_sessions()
        database = opened.connect(1)
        with closing(database), audit_connection(database) as connection:
            scope = _scope(connection, options)
            for violation in violations(connection, scope, AuditLimits(), tally):
                print_result(_line(violation, as_json=options.json))
            if not tally.responses:
                with store.snapshot(connection):
                    refuse_unknown_tenant(connection, options.tenant)
    except DatabaseError as error:
        raise ConfigError(f"The audit could not go on: {in_one_line(error)}") from error
    if options.json:
        print_result(_json_summary(tally))
    else:
        print_status(_summary(tally))
    return VIOLATED if tally.violations else CLEAN


def _require_current(url: str) -> None:
    match schema_state(url):
        case "behind":
            raise ConfigError(BEHIND)
        case "unknown":
            raise ConfigError(UNKNOWN)


def _scope(connection: Connection, options: argparse.Namespace) -> Scope:
    since = options.since
    if isinstance(since, timedelta):
        with store.snapshot(connection):
            since = clock(connection) - since
    return Scope(tenant=options.tenant, since=since, limit=options.limit, replays=not options.quick)


def _line(violation: Violation, *, as_json: bool) -> str:
    name = response_id(violation.response_id) if violation.response_id is not None else None
    invariant, tenant, sentence = violation.invariant, violation.tenant, violation.sentence
    if not as_json:
        return f"{invariant}\t{tenant}\t{name or '-'}\t{sentence}"
    line = {"invariant": invariant, "tenant": tenant, "response": name, "sentence": sentence}
    return msgspec.json.encode(line).decode()


def _summary(tally: Tally) -> str:
    counts = ", ".join(f"{name} {count}" for name, count in _in_order(tally))
    unfinished = f"{tally.unfinished} unfinished"
    if tally.unfinished and not tally.served:
        unfinished += ", which wait for a server"
    wrong = f"{tally.violations.total()} violations: {counts}" if counts else "nothing is wrong"
    return f"{tally.responses} responses audited ({unfinished}); {wrong}."


def _json_summary(tally: Tally) -> str:
    counts = {"responses": tally.responses, "unfinished": tally.unfinished, "served": tally.served}
    return msgspec.json.encode({**counts, "violations": dict(_in_order(tally))}).decode()


def _in_order(tally: Tally) -> Iterable[tuple[str, int]]:
    return ((name, tally.violations[name]) for name in INVARIANTS if tally.violations[name])
