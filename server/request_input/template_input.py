"""The input of a request that names a stored prompt template: the template's items before its own."""

import msgspec

from server.errors import NotFound
from server.protocol.responses.input import InputItem
from server.protocol.responses.items import Item
from server.protocol.responses.prompt_variables import Template, fill, read_template
from server.protocol.responses.request import CreateResponse, PromptReference
from server.request_input.resolve_input import read_request_input
from server.store.content import prompt_templates
from server.store.database import Connection, Database

MAX_VERSION_DIGITS = 9
"""Digits of a version; longer ones are unknown without a query."""


def read_templated_input(
    database: Database, tenant: str, request: CreateResponse
) -> tuple[CreateResponse, list[InputItem]]:
    """The template's items, if any, and the parsed input. Raises NotFound, and as `read_request_input`."""
    reference = request.prompt
    if reference is None:
        return read_request_input(request)
    version, template = database.retry(lambda connection: _find(connection, tenant, reference))
    request, items = expand(request, reference, version, template)
    request, input_items = read_request_input(request)
    return request, [*items, *input_items]


def expand(
    request: CreateResponse, reference: PromptReference, version: int, template: Template
) -> tuple[CreateResponse, list[Item]]:
    """The request with the template's instructions, unless it has its own, and the template's items.

    `prompt.version` becomes the version used. Raises DecodeFailure for wrong variables. Pure.
    """
    filled = fill(template, reference.variables or {})
    changed = msgspec.structs.replace(
        request,
        instructions=request.instructions if request.instructions is not None else filled.instructions,
        prompt=msgspec.structs.replace(reference, version=str(version)),
    )
    return changed, filled.items


def _find(connection: Connection, tenant: str, reference: PromptReference) -> tuple[int, Template]:
    version = _version_number(reference)
    stored = prompt_templates.get(connection, tenant, reference.id, version)
    if stored is None:
        raise _unknown(reference)
    return stored.version, read_template(stored.content.encode())


def _version_number(reference: PromptReference) -> int | None:
    version = reference.version
    if version is None:
        return None
    if not (version.isascii() and version.isdigit() and len(version) <= MAX_VERSION_DIGITS):
        raise _unknown(reference)
    return int(version)


def _unknown(reference: PromptReference) -> NotFound:
    version = f" and version '{reference.version[:20]}'" if reference.version is not None else ""
    return NotFound(f"Prompt with id '{reference.id[:100]}'{version} not found.", param="prompt.id")
