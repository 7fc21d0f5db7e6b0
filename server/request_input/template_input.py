"""The input of a request that names a stored prompt template: the template's items before its own."""

import msgspec

from server.errors import NotFound
from server.protocol.responses.input import InputItem
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
    """The parsed input, after the items of the template, if any, whose instructions stand for missing ones.

    `prompt.version` becomes the version used. Raises NotFound, InvalidRequest for wrong variables, and as
    `read_request_input`.
    """
    reference = request.prompt
    if reference is None:
        return read_request_input(request)
    version, template = database.retry(lambda connection: _find(connection, tenant, reference))
    filled = fill(template, reference.variables or {})
    request = msgspec.structs.replace(
        request,
        instructions=request.instructions if request.instructions is not None else filled.instructions,
        prompt=msgspec.structs.replace(reference, version=str(version)),
    )
    request, input_items = read_request_input(request)
    return request, [*filled.items, *input_items]


def _find(connection: Connection, tenant: str, reference: PromptReference) -> tuple[int, Template]:
    digits = reference.version
    if digits is not None and not (
        digits.isascii() and digits.isdigit() and len(digits) <= MAX_VERSION_DIGITS
    ):
        raise _unknown(reference)
    version = None if digits is None else int(digits)
    stored = prompt_templates.get(connection, tenant, reference.id, version)
    if stored is None:
        raise _unknown(reference)
    return stored.version, read_template(stored.content.encode())


def _unknown(reference: PromptReference) -> NotFound:
    version = f" and version '{reference.version[:20]}'" if reference.version is not None else ""
    return NotFound(f"Prompt with id '{reference.id[:100]}'{version} not found.", param="prompt.id")
