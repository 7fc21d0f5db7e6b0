"""`holdfast keys`: create, list and revoke API keys."""

import argparse
import re

from server.caller import DEFAULT_TENANT
from server.cli.command import (
    Subcommands,
    add_command,
    add_group,
    current_database,
    print_result,
    print_status,
)
from server.configuration.settings import Config
from server.errors import ConfigError
from server.http.authentication import make_key
from server.store import stored_keys
from server.store.cluster import claims

TENANT = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


def add_commands(commands: Subcommands) -> None:
    group = add_group(commands, "keys", "API keys")
    create = add_command(group, "create", "make a key and show it, once", _create)
    create.add_argument("--tenant", default=DEFAULT_TENANT, help="whose key it is (default: %(default)s)")
    create.add_argument("--name", default="", help="a note for yourself")
    create.add_argument(
        "--priority-floor",
        type=_priority,
        default=0,
        metavar="N",
        help="the most urgent priority of its requests; a lower number is more urgent (default: %(default)s)",
    )
    create.add_argument("--if-none", action="store_true", help="do nothing when a key exists already")
    add_command(group, "list", "list keys", _list).add_argument("--tenant")
    revoke = add_command(group, "revoke", "end a key", _revoke)
    revoke.add_argument("key_id")
    revoke.add_argument(
        "--end",
        action="store_true",
        help="also cancel its stored responses that have not ended, on every replica",
    )


def _priority(text: str) -> int:
    """A priority as a 32-bit integer. Raises ValueError, which argparse reports."""
    number = int(text)
    if abs(number) >= 2**31:
        raise ValueError(text)
    return number


def _create(config: Config, options: argparse.Namespace) -> int:
    if not TENANT.fullmatch(options.tenant):
        raise ConfigError(
            "A tenant's name is 1 to 63 of a-z, 0-9, - and _, and begins with a letter or digit."
        )

    with current_database(config) as (database, _):
        with database.begin() as connection:
            if options.if_none and stored_keys.any_exist(connection):
                print_status("A key exists already.")
                return 0
            key = make_key()
            stored_keys.insert_key(
                connection, options.tenant, key.id, options.name, key.digest, options.priority_floor
            )
        print_status(f"Key {key.id} of tenant {options.tenant}; it is shown this once:")
        print_result(key.text)
    return 0


def _list(config: Config, options: argparse.Namespace) -> int:
    with current_database(config) as (database, _), database.begin() as connection:
        keys = stored_keys.list_all(connection, options.tenant)
    for key in keys:
        state = f"revoked {key.revoked_at:%Y-%m-%d}" if key.revoked_at else "valid"
        used = f"used {key.last_used_at:%Y-%m-%d %H:%M}" if key.last_used_at else "never used"
        columns = (key.id, key.tenant, f"made {key.created_at:%Y-%m-%d}", used, state, key.name)
        print_result("\t".join(columns).rstrip())
    return 0


def _revoke(config: Config, options: argparse.Namespace) -> int:
    key_id = options.key_id
    with current_database(config) as (database, _):
        with database.begin() as connection:
            if not stored_keys.revoke(connection, key_id) and not (
                options.end and stored_keys.is_revoked(connection, key_id)
            ):
                raise ConfigError(f"There is no valid key {key_id!r}; `holdfast keys list` shows them.")
        print_status(f"Key {key_id} is revoked.")
        if options.end:
            ended = database.retry(lambda connection: claims.request_cancel_of_key(connection, key_id))
            print_status(f"{ended} of its responses had not ended and are cancelled within about a second.")
    return 0
