"""`holdfast keys`: create, list, update, rotate and revoke API keys."""

import argparse
from collections.abc import Collection
from datetime import timedelta
from typing import Final

from server.administration import key_changes
from server.administration.options_and_form_fields import time_of
from server.caller import DEFAULT_SCOPES, DEFAULT_TENANT, Scope
from server.cli import command as cli
from server.cli.options import add_request_options, duration, refuse_unknown_tenant, request_of
from server.configuration.settings import Config
from server.protocol.administration.objects import Key
from server.protocol.administration.requests import CreateKey, UpdateKey
from server.store.administration import stored_keys
from server.store.database import clock

OPERATOR_SCOPES: Final[tuple[Scope, ...]] = ("admin", "read", "write")
"""Scopes of a key that opens every page of the console: the playground reads and writes as a client does."""


def add_commands(commands: cli.Subcommands) -> None:
    group = cli.add_group(commands, "keys", "API keys")
    create = cli.add_command(group, "create", "make a key and show it, once", _create)
    create.add_argument("--tenant", default=DEFAULT_TENANT, help="whose key it is (default: %(default)s)")
    create.add_argument(
        "--if-none",
        action="store_true",
        help="make the operator's key where there is none, at first or after the erasure of all, by default "
        "with the scopes admin, read and write; do nothing when a key exists already",
    )
    add_request_options(create, UpdateKey)
    listing = cli.add_command(group, "list", "list keys", _list)
    listing.add_argument("--tenant")
    listing.add_argument("--json", action="store_true", help="a line of JSON for each key")
    update = cli.add_command(group, "update", "change what a key may do; omitted options stay", _update)
    update.add_argument("key_id")
    add_request_options(update, UpdateKey)
    says = "replace a key by a new one, shown once, that may do the same"
    rotate = cli.add_command(group, "rotate", says, _rotate)
    rotate.add_argument("key_id")
    day, says = timedelta(hours=24), "how long the old key stays valid (default: 24h)"
    rotate.add_argument("--overlap", type=duration, default=day, help=says)
    revoke = cli.add_command(group, "revoke", "end a key", _revoke)
    revoke.add_argument("key_id")
    says = "also end its streams and WebSockets and cancel its responses, on every replica"
    revoke.add_argument("--end", action="store_true", help=says)


def _create(config: Config, options: argparse.Namespace) -> None:
    with cli.transaction(config) as connection:
        is_only = not stored_keys.any_exist(connection)
        if options.if_none and not is_only:
            valid = stored_keys.any_valid(connection)
            exists = "A key exists already" if valid else "Keys exist, though none that is valid"
            cli.print_status(f"{exists}; keys are shown once. To make another: holdfast keys create")
            return
        scopes = OPERATOR_SCOPES if options.if_none else sorted(DEFAULT_SCOPES)
        now = clock(connection)
        request = request_of(CreateKey, options, now, tenant=options.tenant, scopes=scopes)
        key = key_changes.create_key(connection, cli.this_user(), request)
    cli.print_status(f"Key {key.id} of tenant {options.tenant}; it is shown this once:")
    cli.print_result(key.value)
    if is_only:
        cli.print_status(_what_first_key_opens(request.scopes or ()))


def _what_first_key_opens(scopes: Collection[str]) -> str:
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
        f"holdfast keys create --scopes {','.join(OPERATOR_SCOPES)}"
    )


def _list(config: Config, options: argparse.Namespace) -> None:
    with cli.transaction(config) as connection:
        listed = key_changes.key_objects(connection, stored_keys.list_page(connection, options.tenant))
        if not listed:
            refuse_unknown_tenant(connection, options.tenant)
    names = ("key", "tenant", "made", "used", "state", "name", "more")
    cli.print_rows(((key, _columns(key)) for key in listed), names, as_json=options.json)


def _columns(key: Key) -> list[str]:
    used = "never used" if key.last_used_at is None else f"used {time_of(key.last_used_at):%Y-%m-%d %H:%M}"
    columns = [key.id, key.tenant, f"made {time_of(key.created_at):%Y-%m-%d}", used, _state(key), key.name]
    if set(key.scopes) != DEFAULT_SCOPES:
        columns.append(f"scopes {','.join(key.scopes)}")
    for label, allowed in (("models", key.models), ("tools", key.tools)):
        if allowed is not None:
            columns.append(f"{label} {','.join(allowed)}")
    return [*columns, cli.described_limits(key)]


def _state(key: Key) -> str:
    if key.revoked_at is not None:
        return f"revoked {time_of(key.revoked_at):%Y-%m-%d}"
    if key.expires_at is None:
        return "valid"
    word = "expires" if key.state == "valid" else "expired"
    replaced = f", replaced by {key.replaced_by}" if key.replaced_by else ""
    return f"{word} {time_of(key.expires_at):%Y-%m-%d %H:%M}{replaced}"


def _update(config: Config, options: argparse.Namespace) -> None:
    with cli.transaction(config) as connection:
        request = request_of(UpdateKey, options, clock(connection))
        key = key_changes.update_key(connection, cli.this_user(), options.key_id, request)
    cli.print_status("\t".join(_columns(key)).rstrip())


def _rotate(config: Config, options: argparse.Namespace) -> None:
    with cli.transaction(config) as connection:
        key = key_changes.rotate_key(connection, cli.this_user(), options.key_id, options.overlap)
        old = stored_keys.get(connection, options.key_id)
    assert old is not None
    cli.print_status(
        f"Key {key.id} replaces {old.id}, which expires {old.properties.expires_at:%Y-%m-%d %H:%M}; "
        "it is shown this once:"
    )
    cli.print_result(key.value)


def _revoke(config: Config, options: argparse.Namespace) -> None:
    key_id = options.key_id
    with cli.transaction(config) as connection:
        ended = key_changes.revoke_key(connection, cli.this_user(), key_id, end=options.end)
    cli.print_status(f"Key {key_id} is revoked.")
    if options.end:
        cli.print_status(
            f"{ended} of its stored responses had not ended; they, its streams and its WebSockets end "
            "within about a second."
        )
