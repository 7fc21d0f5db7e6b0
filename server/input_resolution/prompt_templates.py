"""A request's stored prompt, put into the request before anything else is made of it."""

import msgspec

from server.errors import NotFound
from server.input_resolution.resolve_input import read_request_input
from server.protocol.responses.input import InputItem
from server.protocol.responses.items import Item
from server.protocol.responses.prompt_templates import Template, fill, read_template
from server.protocol.responses.request import CreateResponse, PromptReference
from server.store.content import prompt_templates
from server.store.database import Connection, Database

MAX_VERSION_DIGITS = 9
"""Of a version's number."""


def read_templated_input(
    database: Database, tenant: str, request: CreateResponse
) -> tuple[CreateResponse, list[InputItem]]:
    """What `context.read_given` gives, with what the stored prompt says put before it."""
    if request.prompt is None:
        return read_request_input(request)
    named = request.prompt
    version, template = database.retry(lambda connection: _find(connection, tenant, named))
    request, items = expand(request, named, version, template)
    request, given = read_request_input(request)
    return request, [*items, *given]


def expand(
    request: CreateResponse, named: PromptReference, version: int, template: Template
) -> tuple[CreateResponse, list[Item]]:
    """The request with its prompt's instructions, unless it has its own, and the items before its input.

    It then names the version that was taken. Raises DecodeFailure for wrong variables. Pure.
    """
    filled = fill(template, named.variables or {})
    changed = msgspec.structs.replace(
        request,
        instructions=request.instructions if request.instructions is not None else filled.instructions,
        prompt=msgspec.structs.replace(named, version=str(version)),
    )
    return changed, filled.items


def _find(connection: Connection, tenant: str, named: PromptReference) -> tuple[int, Template]:
    version = _version_number(named)
    stored = prompt_templates.get(connection, tenant, named.id, version)
    if stored is None:
        raise _unknown(named)
    return stored.version, read_template(stored.content.encode())


def _version_number(named: PromptReference) -> int | None:
    if named.version is None:
        return None
    if not (named.version.isascii() and named.version.isdigit() and len(named.version) <= MAX_VERSION_DIGITS):
        raise _unknown(named)
    return int(named.version)


def _unknown(named: PromptReference) -> NotFound:
    version = f" and version '{named.version[:20]}'" if named.version is not None else ""
    return NotFound(f"Prompt with id '{named.id[:100]}'{version} not found.", param="prompt.id")
