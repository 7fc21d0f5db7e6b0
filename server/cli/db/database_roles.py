"""`holdfast db roles`, `users`, `create-user`, `drop-user`: database roles of servers and readers."""

import argparse
import re
import secrets

from server.administration.checks import TENANT
from server.cli.command import (
    Subcommands,
    add_command,
    opened_database,
    print_columns,
    print_result,
    print_status,
)
from server.configuration.settings import Config
from server.errors import ConfigError
from server.store import database_roles

USER = re.compile(r"[a-z_][a-z0-9_-]{0,62}")


def add_commands(group: Subcommands) -> None:
    """Adds the commands to `holdfast db`."""
    add_command(group, "roles", "make the roles of servers and readers, or update their rights", _roles)
    create = add_command(group, "create-user", "make a user and show its password, once", _create)
    create.add_argument("name")
    create.add_argument(
        "--as", dest="user_role", choices=("server", "reader"), required=True, help="its rights"
    )
    create.add_argument(
        "--tenant",
        action="append",
        default=[],
        help="a reader of this tenant's rows alone; may be given several times",
    )
    add_command(group, "drop-user", "end a user's sessions and remove it", _drop).add_argument("name")
    add_command(group, "users", "list the users of these roles", _list)


def _roles(config: Config, _options: argparse.Namespace) -> int:
    with opened_database(config, print_status) as opened:
        opened.make_current()
        database_roles.create_roles(opened.session_url)
    print_status(
        f"The roles {database_roles.SERVER}, {database_roles.READER} and {database_roles.TENANT_READER} are"
        " current."
    )
    return 0


def _create(config: Config, options: argparse.Namespace) -> int:
    if not USER.fullmatch(options.name):
        raise ConfigError("A user's name is 1 to 63 of a-z, 0-9, - and _, and begins with a letter or _.")
    if options.tenant and options.user_role == "server":
        raise ConfigError("A server serves all tenants; --tenant is for readers.")
    for tenant in options.tenant:
        if not TENANT.fullmatch(tenant):
            raise ConfigError(f"{tenant!r} is not a tenant's name.")
    password = secrets.token_urlsafe(24)
    with opened_database(config, print_status) as opened:
        opened.make_current()
        if not database_roles.roles_exist(opened.session_url):
            raise ConfigError("This database has no roles yet; run: holdfast db roles")
        tenants = tuple(dict.fromkeys(options.tenant))
        database_roles.create_user(opened.session_url, options.name, options.user_role, password, tenants)
    print_status(f"User {options.name}; its password is shown this once:")
    print_result(password)
    return 0


def _drop(config: Config, options: argparse.Namespace) -> int:
    with opened_database(config, print_status) as opened:
        opened.make_current()
        ended = database_roles.drop_user(opened.session_url, options.name)
    rest = "" if ended else " Its open sessions go on until they end."
    print_status(f"User {options.name} is removed.{rest}")
    return 0


def _list(config: Config, _options: argparse.Namespace) -> int:
    with opened_database(config, print_status) as opened:
        opened.make_current()
        print_columns("user", "role", "tenants")
        for user in database_roles.list_users(opened.session_url):
            print_result("\t".join((user.name, user.role, ", ".join(user.tenants) or "all tenants")))
    return 0
