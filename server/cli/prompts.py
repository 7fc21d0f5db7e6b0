"""`holdfast prompts`: the templates that requests name in `prompt`, put from files, listed, deleted."""

import argparse
import re
from pathlib import Path

import msgspec

from server.caller import DEFAULT_TENANT
from server.errors import ConfigError
from server.input_resolution.prompt_templates import MAX_VERSION_DIGITS
from server.protocol.errors import DecodeFailure
from server.protocol.responses.prompt_templates import read_template
from server.store.content import prompt_templates
from server.store.database import Database

ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def add_put_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("prompt", metavar="ID", help="the name by which requests ask for it")
    command.add_argument(
        "file",
        type=Path,
        metavar="FILE",
        help='text is instructions; a .json file has {"instructions": …, "input": …}, like a request',
    )
    _add_version(command, "which version it is, in place of what that was; default: the next one")


def add_delete_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("prompt", metavar="ID")
    _add_version(command, "only this version")


def add_list_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--tenant")


def _add_version(command: argparse.ArgumentParser, told: str) -> None:
    command.add_argument("--version", type=_version, metavar="V", help=told)
    command.add_argument("--tenant", default=DEFAULT_TENANT, help="whose it is (default: %(default)s)")


def _version(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= len(text) <= MAX_VERSION_DIGITS and int(text) > 0):
        raise argparse.ArgumentTypeError("must be a whole number of at least 1")
    return int(text)


def put(database: Database, options: argparse.Namespace) -> str:
    """Stores a file as a version of a prompt; a sentence about it. Raises ConfigError."""
    if not ID.fullmatch(options.prompt):
        raise ConfigError("A prompt's ID is 1 to 64 letters, digits, _, . and -.")
    content = _read(options.file)
    try:
        names = read_template(content).names
    except DecodeFailure as failure:
        raise ConfigError(f"{options.file}: {failure}") from failure
    stored = None
    while stored is None:
        with database.begin() as connection:
            stored = prompt_templates.put(
                connection, options.tenant, options.prompt, content.decode(), options.version
            )
    needs = f" It needs {', '.join(sorted(names))}." if names else ""
    return f"Prompt {options.prompt} of tenant {options.tenant} has version {stored}.{needs}"


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


def listed(database: Database, options: argparse.Namespace) -> list[str]:
    """A line for each version: id, tenant, version, when it was put, what it needs."""
    with database.begin() as connection:
        found = prompt_templates.list_all(connection, options.tenant)
    return [
        "\t".join(
            (
                stored.id,
                stored.tenant,
                f"version {stored.version}",
                f"put {stored.created_at:%Y-%m-%d %H:%M}",
                " ".join(sorted(read_template(stored.content.encode()).names)),
            )
        ).rstrip()
        for stored in found
    ]


def delete(database: Database, options: argparse.Namespace) -> str:
    """A sentence about what went. Raises ConfigError if there was nothing."""
    with database.begin() as connection:
        gone = prompt_templates.delete(connection, options.tenant, options.prompt, options.version)
    if not gone:
        raise ConfigError(f"There is no such prompt {options.prompt!r}; `holdfast prompts list` shows them.")
    return f"Deleted {gone} versions of prompt {options.prompt}."
