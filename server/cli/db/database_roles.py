"""`holdfast db roles`, `users`, `create-user`, `drop-user`: database roles of servers and readers."""

import argparse
import os
import re
import secrets
from pathlib import Path

from server.caller import TENANT
from server.cli import command as cli
from server.configuration.settings import Config
from server.errors import ConfigError
from server.store import database_roles
from server.store.database_roles import DatabaseUser

USER = re.compile(r"[a-z_][a-z0-9_-]{0,62}")


def add_commands(group: cli.Subcommands) -> None:
    cli.add_command(group, "roles", "make the roles of servers and readers, or update their rights", _roles)
    create = cli.add_command(group, "create-user", "make a user and show its password, once", _create)
    create.add_argument("name")
    roles = ("server", "reader")
    create.add_argument("--as", dest="user_role", choices=roles, required=True, help="its rights")
    says = "a reader of this tenant's rows alone; may be given several times"
    create.add_argument("--tenant", action="append", default=[], help=says)
    create.add_argument(
        "--passfile",
        type=Path,
        metavar="FILE",
        help="write the password to a password file of libpq in place of showing it; if FILE is there, the "
        "user, new or not, gets the password that it has",
    )
    cli.add_command(group, "drop-user", "end a user's sessions and remove it", _drop).add_argument("name")
    cli.add_command(group, "users", "list the users of these roles", _list)


def _roles(config: Config, _options: argparse.Namespace) -> None:
    with cli.opened_database(config, cli.print_status) as opened:
        opened.make_current()
        database_roles.create_roles(opened.session_url)
    cli.print_status(
        f"The roles {database_roles.SERVER}, {database_roles.READER} and {database_roles.TENANT_READER} are"
        " current."
    )


def _create(config: Config, options: argparse.Namespace) -> None:
    if not USER.fullmatch(options.name):
        raise ConfigError("A user's name is 1 to 63 of a-z, 0-9, - and _, and begins with a letter or _.")
    if options.tenant and options.user_role == "server":
        raise ConfigError("A server serves all tenants; --tenant is for readers.")
    for tenant in options.tenant:
        if not TENANT.fullmatch(tenant):
            raise ConfigError(f"{tenant!r} is not a tenant's name.")
    passfile: Path | None = options.passfile
    password = (None if passfile is None else _password_in(passfile, options.name)) or secrets.token_urlsafe(
        24
    )
    tenants = tuple(sorted(set(options.tenant)))
    user = DatabaseUser(options.name, options.user_role, tenants)
    with cli.opened_database(config, cli.print_status) as opened:
        opened.make_current()
        if not database_roles.roles_exist(opened.session_url):
            raise ConfigError("This database has no roles yet; run: holdfast db roles")
        if passfile is not None and user in database_roles.list_users(opened.session_url):
            database_roles.set_password(opened.session_url, user.name, password)
        else:
            database_roles.create_user(opened.session_url, user.name, user.role, password, tenants)
    if passfile is None:
        cli.print_status(f"User {user.name}; its password is shown this once:")
        cli.print_result(password)
    else:
        _write_passfile(passfile, user.name, password)
        cli.print_status(f"User {user.name} has the password in {passfile}.")


def _password_in(passfile: Path, user: str) -> str | None:
    """The password in a file of `_write_passfile`; None without a file. Raises ConfigError."""
    try:
        line = passfile.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{passfile} cannot be read: {error}.") from error
    *which, password = line.rstrip("\n").split(":")
    if which != ["*", "*", "*", user] or not password or "\\" in password:
        raise ConfigError(f"{passfile} has another content than a password of {user}; remove it first.")
    return password


def _write_passfile(passfile: Path, user: str, password: str) -> None:
    """Puts the file there as a whole, readable for its owner alone, which libpq requires.

    It comes after the password is set: who finds the file can log in. Raises ConfigError.
    """
    unfinished = passfile.with_name(f".{passfile.name}.{os.getpid()}")
    try:
        with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(f"*:*:*:{user}:{password}\n")
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(passfile)
    except OSError as error:
        raise ConfigError(
            f"{passfile} cannot be written: {error.strerror}. Repeat this with a folder that can."
        ) from error


def _drop(config: Config, options: argparse.Namespace) -> None:
    with cli.opened_database(config, cli.print_status) as opened:
        opened.make_current()
        ended = database_roles.drop_user(opened.session_url, options.name)
    rest = "" if ended else " Its open sessions go on until they end."
    cli.print_status(f"User {options.name} is removed.{rest}")


def _list(config: Config, _options: argparse.Namespace) -> None:
    with cli.opened_database(config, cli.print_status) as opened:
        opened.make_current()
        cli.print_columns("user", "role", "tenants")
        for user in database_roles.list_users(opened.session_url):
            cli.print_result("\t".join((user.name, user.role, ", ".join(user.tenants) or "all tenants")))
