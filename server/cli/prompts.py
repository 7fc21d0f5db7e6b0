"""`holdfast prompts`: stores, lists and deletes the prompt templates that requests name in `prompt`."""

import argparse
import re
from pathlib import Path

import msgspec

from server.caller import DEFAULT_TENANT
from server.cli import command as cli
from server.cli.options import refuse_unknown_tenant, whole_number
from server.configuration.settings import Config
from server.errors import ConfigError, InvalidRequest
from server.protocol.responses.prompt_variables import read_template
from server.request_input.template_input import MAX_VERSION_DIGITS
from server.store.content import prompt_templates
from server.store.database import Connection

ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def add_commands(commands: cli.Subcommands) -> None:
    group = cli.add_group(commands, "prompts", "prompt templates")
    put = cli.add_command(group, "put", "store a file as a version of a prompt", _put)
    put.add_argument("prompt", metavar="ID", help="the name by which requests select it")
    says = 'text is instructions; a .json file has {"instructions": …, "input": …}, like a request'
    put.add_argument("file", type=Path, metavar="FILE", help=says)
    _add_version(put, "the version to create or replace; default: the next one")
    cli.add_command(group, "list", "list prompts", _list).add_argument("--tenant")
    delete = cli.add_command(group, "delete", "delete a prompt, or one version of it", _delete)
    delete.add_argument("prompt", metavar="ID")
    _add_version(delete, "only this version")


def _add_version(command: argparse.ArgumentParser, help_text: str) -> None:
    number = whole_number(1, 10**MAX_VERSION_DIGITS - 1)
    command.add_argument("--version", type=number, metavar="V", help=help_text)
    command.add_argument("--tenant", default=DEFAULT_TENANT, help="whose it is (default: %(default)s)")


def _put(config: Config, options: argparse.Namespace) -> None:
    if not ID.fullmatch(options.prompt):
        raise ConfigError("A prompt's ID is 1 to 64 letters, digits, _, . and -.")
    content = _read(options.file)
    try:
        names = read_template(content).names
    except InvalidRequest as failure:
        raise ConfigError(f"{options.file}: {failure}") from failure

    version = None
    with cli.current_database(config) as (database, _):
        while version is None:  # another process has just created the next version
            with database.begin() as connection:
                version = prompt_templates.put(
                    connection, options.tenant, options.prompt, content.decode(), options.version
                )
                if version is not None:
                    _record(connection, options, "prompt.put", version)
    needs = f" It needs {', '.join(sorted(names))}." if names else ""
    cli.print_status(f"Prompt {options.prompt} of tenant {options.tenant} has version {version}.{needs}")


def _record(connection: Connection, options: argparse.Namespace, action: str, version: int | None) -> None:
    cli.this_user().record(connection, action, options.tenant, options.prompt, {"version": version})


def _read(file: Path) -> bytes:
    """The template's JSON."""
    try:
        content = file.read_bytes()
        if file.suffix == ".json":
            return content
        return msgspec.json.encode({"instructions": content.decode()})
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not text in UTF-8.") from error


def _list(config: Config, options: argparse.Namespace) -> None:
    """Prints a line for each version: id, tenant, version, creation time, variables."""
    with cli.transaction(config) as connection:
        versions = prompt_templates.list_all(connection, options.tenant)
        if not versions:
            refuse_unknown_tenant(connection, options.tenant)
    cli.print_columns("prompt", "tenant", "version", "put", "variables")
    for stored in versions:
        columns = (
            stored.id,
            stored.tenant,
            f"version {stored.version}",
            f"put {stored.created_at:%Y-%m-%d %H:%M}",
            " ".join(sorted(read_template(stored.content.encode()).names)),
        )
        cli.print_result("\t".join(columns).rstrip())


def _delete(config: Config, options: argparse.Namespace) -> None:
    """Raises ConfigError if there is no such prompt or version."""
    with cli.transaction(config) as connection:
        deleted = prompt_templates.delete(connection, options.tenant, options.prompt, options.version)
        if deleted:
            _record(connection, options, "prompt.delete", options.version)
    if not deleted:
        raise ConfigError(f"There is no such prompt {options.prompt!r}; `holdfast prompts list` shows them.")
    cli.print_status(f"Deleted {deleted} versions of prompt {options.prompt}.")
