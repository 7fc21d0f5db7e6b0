"""The request of a stored response, from what its row repeats of it. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from server.protocol.responses.request import CreateResponse

_OF_ITS_RUN: Final = (
    *("background", "store", "stream", "stream_options", "request_id", "input", "service_tier"),
    *("conversation", "prompt", "previous_input_messages", "instructions", "tools"),
)
"""Not taken from the stored request: said anew, among the input items, or taken from the response."""
_EMPTY: Final[tuple[object, ...]] = (None, [], {}, "")
_REDACTED: Final = "<redacted>"


@dataclass(frozen=True, slots=True)
class StoredRequest:
    """A request without `input`, `background` and `store`."""

    parameters: Mapping[str, Any]
    notes: Sequence[str]
    """Differences from the original request, in sentences."""
    obstacle: str
    """Why it cannot be sent as it is; empty if it can."""


def stored_request(echo: str, asked: str | None, *, kind: str, seed: int | None) -> StoredRequest:
    """The request from the JSON of the row's columns. Raises msgspec.DecodeError."""
    repeated: dict[str, Any] = msgspec.json.decode(echo)
    source: dict[str, Any] = msgspec.json.decode(asked) if asked else repeated
    known = set(CreateResponse.__struct_fields__) - set(_OF_ITS_RUN)
    parameters = {name: value for name, value in source.items() if name in known}
    for name, value in parameters.items():
        if isinstance(value, dict):
            parameters[name] = {key: element for key, element in value.items() if element is not None}
    for name in ("instructions", "tools"):
        parameters[name] = repeated.get(name)
    parameters["seed"] = seed
    parameters = {name: value for name, value in parameters.items() if value not in _EMPTY}
    if "tools" not in parameters:
        parameters.pop("tool_choice", None)
    return StoredRequest(parameters, _notes(repeated, asked, kind), _obstacle(repeated, kind))


def _notes(echo: Mapping[str, Any], asked: str | None, kind: str) -> list[str]:
    notes = []
    if asked is None:
        notes.append(
            "Parameters that a response does not repeat, such as top_k, stop and logit_bias, are not stored "
            "after its end; their defaults hold."
        )
    if kind == "chat":
        notes.append("It was a chat completion, and is run as a response.")
    if echo.get("conversation"):
        notes.append(
            "It belongs to a conversation. The new response gets the items before it as input, and is not "
            "added to the conversation."
        )
    if echo.get("prompt"):
        notes.append("The items of its stored prompt are part of the input.")
    if any(tool.get("type") == "mcp" and tool.get("server_url") for tool in echo.get("tools") or ()):
        notes.append("Headers and tokens for MCP servers are never stored.")
    return notes


def _obstacle(echo: Mapping[str, Any], kind: str) -> str:
    if kind == "completion":
        return "A legacy completion has a prompt without messages, which no response can repeat."
    for tool in echo.get("tools") or ():
        if _REDACTED in str(tool.get("server_url") or ""):
            label = str(tool.get("server_label"))[:100]
            return f"The address of the MCP server {label} is not stored whole; write it into the request."
    return ""
