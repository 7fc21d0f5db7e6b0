"""What the server itself does for one response: the MCP tools that it offers, and how a model reads them.

Pure.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from server.wire.items import (
    FunctionCall,
    FunctionCallOutput,
    Item,
    ListedTool,
    McpCall,
    McpError,
    McpListTools,
)
from server.wire.request import CreateResponse
from server.wire.tools import McpTool, read_tools


@dataclass(frozen=True, slots=True)
class Listed:
    """One server's tools as the stream tells them, or why there are none."""

    label: str
    tools: Sequence[ListedTool]
    error: str | None


@dataclass(frozen=True, slots=True)
class Hosted:
    """The MCP servers of a response."""

    lists: Sequence[Listed] = ()
    most_calls: int | None = None

    @property
    def labels(self) -> frozenset[str]:
        return frozenset(listed.label for listed in self.lists)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call gave: its output, or why there is none."""

    output: str | None = None
    error: McpError | None = None


@dataclass(frozen=True, slots=True)
class DueCall:
    """A call that is to be made, and its item's place in the output."""

    index: int
    call: McpCall
    allowed: bool
    """Else `max_tool_calls` were made before."""


@dataclass(frozen=True, slots=True)
class Errand:
    """What a run waits for: calls to be made, or, once there are none, the model's next turn."""

    calls: Sequence[DueCall]
    output: Sequence[Item]
    turn: int
    """Of the turn that is over; the first is 0."""
    spent: int
    """Output tokens until now."""


def hosted_of(request: CreateResponse) -> Hosted:
    """The servers of a request whose tools were listed."""
    given = [tool for tool in read_tools(request.tools) if isinstance(tool, McpTool)]
    lists = [Listed(tool.server_label, tool.offered, tool.listing_error) for tool in given]
    return Hosted(lists, request.max_tool_calls)


def as_read(items: Sequence[Item]) -> list[Item]:
    """The items as a model reads them: a call of the server's is a call like any other, with its output."""
    return [read for item in items for read in _read(item)]


def _read(item: Item) -> Iterator[Item]:
    if isinstance(item, McpListTools):
        return
    if not isinstance(item, McpCall):
        yield item
        return
    call_id = item.id or f"{item.server_label}:{item.name}"
    yield FunctionCall(item.id, "completed", call_id, item.name, item.arguments, item.server_label)
    yield FunctionCallOutput(item.id, "completed", call_id, told(item))


def told(call: McpCall) -> str:
    """A call's result in words."""
    if call.output is not None:
        return call.output
    if call.error is None:
        return "The call was not finished."
    if call.error.content:
        return "\n".join(str(part.get("text", "")) for part in call.error.content)
    return call.error.message or "The call failed."
