"""The tools and settings that items of a conversation give to the requests after them, and the tools that
searches have loaded.

The newest item of each kind counts, wherever it is: in the input, in the history or in a compaction.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from msgspec import UNSET

from server.errors import InvalidRequest
from server.protocol.decode import convert_to
from server.protocol.error_object import invalid_value
from server.protocol.responses.items import (
    AdditionalTools,
    Compaction,
    ConfigurationUpdate,
    Item,
    ToolSearchOutput,
)
from server.protocol.responses.request import (
    MAX_TOOLS,
    CreateResponse,
    ReasoningOptions,
    TextFormat,
    TextOptions,
)
from server.protocol.responses.tools import declared_name
from server.sealing.cipher import Seal
from server.sealing.sealed_items import unseal_context


def with_item_settings(
    request: CreateResponse, items: Sequence[Item], seal: Seal, tenant: str
) -> CreateResponse:
    """The request with what its conversation's items set: further tools, reasoning effort, text format. A
    request's tool replaces an item's of that name; an item's setting the request's. Raises InvalidRequest for
    too many tools, and for a format that does not go with the rest.
    """
    settings = list(_settings(items, seal, tenant))
    if not settings:
        return request
    tools = _with_tools_of_items(request.tools or (), settings)
    if len(tools) > MAX_TOOLS:
        raise InvalidRequest(
            f"The request, with the additional and the found tools of its conversation, has {len(tools)} "
            f"tools; at most {MAX_TOOLS} are offered.",
            param="tools",
            code="array_above_max_length",
        )
    changed = msgspec.structs.replace(request, tools=tools or request.tools)
    for item in settings:
        if isinstance(item, ConfigurationUpdate):
            changed = _updated(changed, item)
    output_format = changed.text.format if changed.text else None
    if changed.structured_outputs is not None and output_format is not None and output_format.type != "text":
        raise invalid_value(
            "A configuration_update has set a format of text: send one that sets text, or leave out "
            "structured_outputs.",
            "structured_outputs",
        )
    return changed


@contextmanager
def naming_tools_of_items(
    request: CreateResponse, tools: Sequence[dict[str, Any]] | None, new: Sequence[Item]
) -> Iterator[None]:
    """Has the errors of `tools`, which are the request's and those of items, name the input item of a tool.

    `new` are the request's new items. A tool of the history has no field in the request.
    """
    try:
        yield
    except InvalidRequest as error:
        number, end, rest = (error.param or "").removeprefix("tools[").partition("]")
        if end and number.isdecimal() and (path := _path_of_tool((tools or ())[int(number)], request, new)):
            error.param = path + rest
        raise


def _path_of_tool(tool: dict[str, Any], request: CreateResponse, new: Sequence[Item]) -> str | None:
    sent = request.input if isinstance(request.input, list) else []
    before = max(len(new) - sum(element.get("type") != "compaction_trigger" for element in sent), 0)
    for index, item in enumerate(new[before:]):
        added_tools = item.tools if isinstance(item, AdditionalTools | ToolSearchOutput) else ()
        for number, added in enumerate(added_tools):
            if added is tool or _loaded(added) == tool:
                return f"input[{index}].tools[{number}]"
    return None


def _settings(items: Sequence[Item], seal: Seal, tenant: str) -> Iterator[Item]:
    for item in items:
        if isinstance(item, AdditionalTools | ConfigurationUpdate | ToolSearchOutput):
            yield item
        elif isinstance(item, Compaction) and item.encrypted_content:
            yield from _settings(unseal_context(item, seal, tenant) or (), seal, tenant)


def _with_tools_of_items(
    declared: Sequence[dict[str, Any]], settings: Sequence[Item]
) -> list[dict[str, Any]]:
    """The request's tools and those that items have; a namespace has the members of all searches. An MCP
    server is declared by a client's item alone, as the server's own have no secrets and not the whole URL.
    """
    tools = [*declared]
    places = {declared_name(tool): place for place, tool in enumerate(declared)}
    for item in settings:
        for tool in item.tools if isinstance(item, AdditionalTools | ToolSearchOutput) else ():
            if isinstance(item, ToolSearchOutput) and item.execution == "server" and tool["type"] == "mcp":
                continue
            added = _loaded(tool) if isinstance(item, ToolSearchOutput) else tool
            place = places.setdefault(declared_name(tool), len(tools))
            own = place < len(declared)
            if place == len(tools):
                tools.append(added)
            elif added is not tool and tools[place]["type"] == tool["type"] == "namespace":
                known, found = tools[place]["tools"], added["tools"]
                members = {one["name"]: one for one in ([*found, *known] if own else [*known, *found])}
                tools[place] = {**tools[place], "tools": [*members.values()]}
            elif not own:
                tools[place] = added
    return tools


def _loaded(tool: dict[str, Any]) -> dict[str, Any]:
    """The declaration of a tool that is deferred no longer."""
    loaded = {name: value for name, value in tool.items() if name != "defer_loading"}
    return loaded if tool["type"] != "namespace" else {**loaded, "tools": [*map(_loaded, tool["tools"])]}


def _updated(request: CreateResponse, update: ConfigurationUpdate) -> CreateResponse:
    if update.reasoning is not UNSET and update.reasoning.effort is not UNSET:
        reasoning = request.reasoning or ReasoningOptions()
        effort = update.reasoning.effort
        request = msgspec.structs.replace(
            request, reasoning=msgspec.structs.replace(reasoning, effort=effort)
        )
    if update.text is not UNSET:
        text = request.text or TextOptions()
        output_format = convert_to(update.text["format"], TextFormat)
        request = msgspec.structs.replace(request, text=msgspec.structs.replace(text, format=output_format))
    return request
