"""`holdfast keys`: create, list, update, rotate and revoke API keys."""

import argparse
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from server.administration import keys
from server.administration.api_objects import budget_object
from server.caller import DEFAULT_SCOPES, DEFAULT_TENANT, Scope
from server.cli.command import (
    Subcommands,
    add_command,
    add_group,
    current_database,
    print_columns,
    print_result,
    print_status,
)
from server.cli.option_types import (
    add_limit_options,
    add_option,
    changed,
    described_limits,
    duration,
    json_line,
    names,
    option_value,
    or_none,
    refusals_as_sentences,
    refuse_unknown_tenant,
    this_user,
)
from server.configuration.settings import Config
from server.store.administration import budgets, stored_keys
from server.store.administration.budgets import Standing
from server.store.administration.stored_keys import KeyProperties, StoredKey
from server.store.database import Connection, clock

OPERATOR_SCOPES: Final[frozenset[Scope]] = frozenset({"admin", "read", "write"})
"""Scopes of a key that opens every page of the console: the playground reads and writes as a client does."""
_NOT_GIVEN = object()


def add_commands(commands: Subcommands) -> None:
    group = add_group(commands, "keys", "API keys")
    create = add_command(group, "create", "make a key and show it, once", _create)
    create.add_argument("--tenant", default=DEFAULT_TENANT, help="whose key it is (default: %(default)s)")
    create.add_argument(
        "--if-none",
        action="store_true",
        help="make the operator's key where there is none, at first or after the erasure of all, by default "
        "with the scopes admin, read and write; do nothing when a key exists already",
    )
    _add_properties(create)
    listing = add_command(group, "list", "list keys", _list)
    listing.add_argument("--tenant")
    listing.add_argument("--json", action="store_true", help="a line of JSON for each key")
    update = add_command(group, "update", "change what a key may do; what is not given stays", _update)
    update.add_argument("key_id")
    _add_properties(update)
    rotate = add_command(
        group, "rotate", "replace a key by a new one, shown once, that may do the same", _rotate
    )
    rotate.add_argument("key_id")
    rotate.add_argument(
        "--overlap",
        type=duration,
        default=timedelta(hours=24),
        help="how long the old key stays valid (default: 24h)",
    )
    revoke = add_command(group, "revoke", "end a key", _revoke)
    revoke.add_argument("key_id")
    revoke.add_argument(
        "--end",
        action="store_true",
        help="also end its streams and WebSockets and cancel its responses, on every replica",
    )


def _add_properties(command: argparse.ArgumentParser) -> None:
    add_option(command, "--name", help="a note for yourself")
    add_option(
        command,
        "--priority-floor",
        type=int,
        metavar="N",
        help="the most urgent priority of its requests; a lower number is more urgent (default: 0)",
    )
    add_option(
        command,
        "--expires",
        type=or_none(duration),
        metavar="30d",
        help="expires after this time from now; `none`: does not expire",
    )
    add_option(
        command,
        "--end-streams",
        dest="ends_streams",
        action=argparse.BooleanOptionalAction,
        help="what runs with it ends when it expires",
    )
    add_option(
        command,
        "--scopes",
        type=names,
        help=f"of read, write, metrics, metadata, admin; default: {','.join(sorted(DEFAULT_SCOPES))}",
    )
    add_option(command, "--models", type=or_none(names), help="the models it may use; `none`: all")
    add_option(
        command,
        "--tools",
        type=or_none(names),
        help="tools run by the server that it may use: labels of tool servers, URLs of MCP servers, "
        "types such as code_interpreter; `none`: all",
    )
    add_limit_options(command)


def _chosen(connection: Connection, properties: KeyProperties, options: argparse.Namespace) -> KeyProperties:
    properties = changed(properties, options)
    lifetime = option_value(options, "expires", _NOT_GIVEN)
    if lifetime is _NOT_GIVEN:
        return properties
    return replace(properties, expires_at=None if lifetime is None else clock(connection) + lifetime)


def _create(config: Config, options: argparse.Namespace) -> int:
    with current_database(config) as (database, _), refusals_as_sentences():
        with database.begin() as connection:
            is_only = not stored_keys.any_exist(connection)
            if options.if_none and not is_only:
                valid = stored_keys.any_valid(connection)
                exists = "A key exists already" if valid else "Keys exist, though none that is valid"
                print_status(f"{exists}; keys are shown once. To make another: holdfast keys create")
                return 0
            defaults = KeyProperties(scopes=OPERATOR_SCOPES) if options.if_none else KeyProperties()
            properties = _chosen(connection, defaults, options)
            key = keys.create_key(connection, this_user(), options.tenant, properties)
        print_status(f"Key {key.id} of tenant {options.tenant}; it is shown this once:")
        print_result(key.text)
        if is_only:
            print_status(_what_first_key_opens(properties.scopes))
    return 0


def _what_first_key_opens(scopes: frozenset[Scope]) -> str:
    """The sentence on the console below the only key of a server, whose holder has no other way in."""
    if "admin" in scopes:
        return (
            "It opens the console, and shows the contents of all tenants there; give applications keys of "
            "their own: holdfast keys create --tenant NAME"
        )
    if "metadata" in scopes:
        return "It opens the console, without the contents of responses."
    return (
        "It does not open the console. A key that does: "
        f"holdfast keys create --scopes {','.join(sorted(OPERATOR_SCOPES))}"
    )


def _list(config: Config, options: argparse.Namespace) -> int:
    with current_database(config) as (database, _), database.begin() as connection:
        now = clock(connection)
        stored = stored_keys.list_all(connection, options.tenant)
        held = budgets.of_keys(connection, stored)
        if not stored:
            refuse_unknown_tenant(connection, options.tenant)
    if not options.json:
        print_columns("key", "tenant", "made", "used", "state", "name", "more")
    for key in stored:
        standing, limits = held.get(key.id), key.properties.limits
        if options.json:
            budget = None if standing is None else budget_object(limits, standing)
            print_result(json_line(key, "digest", "settings", budget=budget))
        else:
            print_result(_described(key, now, standing))
    return 0


def _described(key: StoredKey, now: datetime, standing: Standing | None = None) -> str:
    chosen = key.properties
    used = f"used {key.last_used_at:%Y-%m-%d %H:%M}" if key.last_used_at else "never used"
    columns = [key.id, key.tenant, f"made {key.created_at:%Y-%m-%d}", used, _state(key, now), chosen.name]
    if chosen.scopes != DEFAULT_SCOPES:
        columns.append(f"scopes {','.join(sorted(chosen.scopes))}")
    for label, allowed in (("models", chosen.models), ("tools", chosen.tools)):
        if allowed is not None:
            columns.append(f"{label} {','.join(sorted(allowed))}")
    columns.append(described_limits(chosen.limits, standing))
    return "\t".join(columns).rstrip()


def _state(key: StoredKey, now: datetime) -> str:
    expires_at = key.properties.expires_at
    if key.revoked_at:
        return f"revoked {key.revoked_at:%Y-%m-%d}"
    if expires_at is None:
        return "valid"
    word = "expires" if expires_at > now else "expired"
    replaced = f", replaced by {key.replaced_by}" if key.replaced_by else ""
    return f"{word} {expires_at:%Y-%m-%d %H:%M}{replaced}"


def _update(config: Config, options: argparse.Namespace) -> int:
    with current_database(config) as (database, _), refusals_as_sentences():
        with database.begin() as connection:
            key = keys.update_key(
                connection,
                this_user(),
                options.key_id,
                lambda properties: _chosen(connection, properties, options),
            )
            now = clock(connection)
        print_status(_described(key, now))
    return 0


def _rotate(config: Config, options: argparse.Namespace) -> int:
    with current_database(config) as (database, _), refusals_as_sentences():
        with database.begin() as connection:
            key = keys.rotate_key(connection, this_user(), options.key_id, options.overlap)
            old = stored_keys.get(connection, options.key_id)
        assert old is not None
        print_status(
            f"Key {key.id} replaces {old.id}, which expires {old.properties.expires_at:%Y-%m-%d %H:%M}; "
            "it is shown this once:"
        )
        print_result(key.text)
    return 0


def _revoke(config: Config, options: argparse.Namespace) -> int:
    key_id = options.key_id
    with current_database(config) as (database, _), refusals_as_sentences():
        with database.begin() as connection:
            ended = keys.revoke_key(connection, this_user(), key_id, end=options.end)
        print_status(f"Key {key_id} is revoked.")
        if options.end:
            print_status(
                f"{ended} of its stored responses had not ended; they, its streams and its WebSockets end "
                "within about a second."
            )
    return 0
