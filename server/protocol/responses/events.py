"""Stream events of the Responses API, and the compact form in which the event log stores them.

The log stores an `Event`: a delta as its bare text, every other event as its JSON. `render` returns the bytes
that clients receive; it is deterministic, so a replay equals the first stream.
"""

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Literal, NamedTuple
from uuid import UUID

import msgspec

from server.protocol import ids
from server.protocol.earlier_releases import with_logprobs
from server.protocol.responses.items import Item, Logprob, OutputText, ReasoningText, SummaryText
from server.protocol.responses.response import Response


class Kind(IntEnum):
    """The encoding of an event's body. The numbers are stored, and named in the view `v_events`."""

    WHOLE = 0
    OUTPUT_TEXT_DELTA = 1
    REASONING_TEXT_DELTA = 2
    FUNCTION_CALL_ARGUMENTS_DELTA = 3
    CUSTOM_TOOL_CALL_INPUT_DELTA = 4
    OUTPUT_TEXT_DELTA_WITH_LOGPROBS = 5
    """The body is a JSON array: the text and the logprobs of its tokens."""


ITEM_PREFIX = {
    Kind.OUTPUT_TEXT_DELTA: "msg",
    Kind.REASONING_TEXT_DELTA: "rs",
    Kind.FUNCTION_CALL_ARGUMENTS_DELTA: "fc",
    Kind.CUSTOM_TOOL_CALL_INPUT_DELTA: "ctc",
    Kind.OUTPUT_TEXT_DELTA_WITH_LOGPROBS: "msg",
}
"""Id prefixes of the items that deltas belong to."""


class Event(NamedTuple):
    """One event of a response in its stored form."""

    sequence_number: int
    kind: Kind
    output_index: int
    """0 for whole events, whose JSON contains it."""
    content_index: int
    body: str
    """JSON text of a whole event; the bare text of a delta."""


class _Event(msgspec.Struct, frozen=True, tag_field="type"):
    sequence_number: int


class ResponseCreated(_Event, frozen=True, tag="response.created"):
    response: Response


class ResponseQueued(_Event, frozen=True, tag="response.queued"):
    response: Response


class ResponseInProgress(_Event, frozen=True, tag="response.in_progress"):
    response: Response


class ResponseCompleted(_Event, frozen=True, tag="response.completed"):
    response: Response


class ResponseFailed(_Event, frozen=True, tag="response.failed"):
    response: Response


class ResponseIncomplete(_Event, frozen=True, tag="response.incomplete"):
    response: Response


class OutputItemAdded(_Event, frozen=True, tag="response.output_item.added"):
    output_index: int
    item: Item


class OutputItemDone(_Event, frozen=True, tag="response.output_item.done"):
    output_index: int
    item: Item


class ContentPartAdded(_Event, frozen=True, tag="response.content_part.added"):
    item_id: str
    output_index: int
    content_index: int
    part: OutputText | ReasoningText


class ContentPartDone(_Event, frozen=True, tag="response.content_part.done"):
    item_id: str
    output_index: int
    content_index: int
    part: OutputText | ReasoningText


class TokenIdsEvent(_Event, frozen=True, tag="holdfast:tokens"):
    """Token ids of the prompt or of the output, sent before the text on request; an extension."""

    side: Literal["prompt", "output"]
    token_ids: list[int]


class OutputTextDelta(_Event, frozen=True, tag="response.output_text.delta"):
    item_id: str
    output_index: int
    content_index: int
    delta: str
    logprobs: Sequence[Logprob] = ()


class OutputTextDone(_Event, frozen=True, tag="response.output_text.done"):
    item_id: str
    output_index: int
    content_index: int
    text: str
    logprobs: Sequence[Logprob] = ()


class ReasoningTextDelta(_Event, frozen=True, tag="response.reasoning_text.delta"):
    item_id: str
    output_index: int
    content_index: int
    delta: str


class ReasoningTextDone(_Event, frozen=True, tag="response.reasoning_text.done"):
    item_id: str
    output_index: int
    content_index: int
    text: str


class ReasoningSummaryPartAdded(_Event, frozen=True, tag="response.reasoning_summary_part.added"):
    item_id: str
    output_index: int
    summary_index: int
    part: SummaryText


class ReasoningSummaryTextDelta(_Event, frozen=True, tag="response.reasoning_summary_text.delta"):
    """Stored as a whole event, as only requests for a summary have any."""

    item_id: str
    output_index: int
    summary_index: int
    delta: str


class ReasoningSummaryTextDone(_Event, frozen=True, tag="response.reasoning_summary_text.done"):
    item_id: str
    output_index: int
    summary_index: int
    text: str


class ReasoningSummaryPartDone(_Event, frozen=True, tag="response.reasoning_summary_part.done"):
    item_id: str
    output_index: int
    summary_index: int
    part: SummaryText


class FunctionCallArgumentsDelta(_Event, frozen=True, tag="response.function_call_arguments.delta"):
    item_id: str
    output_index: int
    delta: str


class FunctionCallArgumentsDone(_Event, frozen=True, tag="response.function_call_arguments.done"):
    item_id: str
    name: str
    output_index: int
    arguments: str


class CustomToolCallInputDelta(_Event, frozen=True, tag="response.custom_tool_call_input.delta"):
    item_id: str
    output_index: int
    delta: str


class CustomToolCallInputDone(_Event, frozen=True, tag="response.custom_tool_call_input.done"):
    item_id: str
    output_index: int
    input: str


class McpListToolsInProgress(_Event, frozen=True, tag="response.mcp_list_tools.in_progress"):
    item_id: str
    output_index: int


class McpListToolsCompleted(_Event, frozen=True, tag="response.mcp_list_tools.completed"):
    item_id: str
    output_index: int


class McpListToolsFailed(_Event, frozen=True, tag="response.mcp_list_tools.failed"):
    item_id: str
    output_index: int


class McpCallInProgress(_Event, frozen=True, tag="response.mcp_call.in_progress"):
    item_id: str
    output_index: int


class McpCallArgumentsDelta(_Event, frozen=True, tag="response.mcp_call_arguments.delta"):
    """All arguments in one delta, as OpenAI sends them; stored as a whole event."""

    item_id: str
    output_index: int
    delta: str


class McpCallArgumentsDone(_Event, frozen=True, tag="response.mcp_call_arguments.done"):
    item_id: str
    output_index: int
    arguments: str


class McpCallCompleted(_Event, frozen=True, tag="response.mcp_call.completed"):
    item_id: str
    output_index: int


class McpCallFailed(_Event, frozen=True, tag="response.mcp_call.failed"):
    item_id: str
    output_index: int


class CodeInProgress(_Event, frozen=True, tag="response.code_interpreter_call.in_progress"):
    item_id: str
    output_index: int


class CodeDelta(_Event, frozen=True, tag="response.code_interpreter_call_code.delta"):
    item_id: str
    output_index: int
    delta: str


class CodeDone(_Event, frozen=True, tag="response.code_interpreter_call_code.done"):
    item_id: str
    output_index: int
    code: str


class CodeInterpreting(_Event, frozen=True, tag="response.code_interpreter_call.interpreting"):
    item_id: str
    output_index: int


class CodeCompleted(_Event, frozen=True, tag="response.code_interpreter_call.completed"):
    item_id: str
    output_index: int


class SearchInProgress(_Event, frozen=True, tag="response.web_search_call.in_progress"):
    item_id: str
    output_index: int


class SearchSearching(_Event, frozen=True, tag="response.web_search_call.searching"):
    item_id: str
    output_index: int


class SearchCompleted(_Event, frozen=True, tag="response.web_search_call.completed"):
    item_id: str
    output_index: int


class CompactionCompacting(_Event, frozen=True, tag="response.compaction.compacting"):
    item_id: str
    output_index: int


WholeEvent = (
    ResponseCreated
    | ResponseQueued
    | ResponseInProgress
    | ResponseCompleted
    | ResponseFailed
    | ResponseIncomplete
    | TokenIdsEvent
    | OutputItemAdded
    | OutputItemDone
    | ContentPartAdded
    | ContentPartDone
    | OutputTextDone
    | ReasoningTextDone
    | ReasoningSummaryPartAdded
    | ReasoningSummaryTextDelta
    | ReasoningSummaryTextDone
    | ReasoningSummaryPartDone
    | FunctionCallArgumentsDone
    | CustomToolCallInputDone
    | CompactionCompacting
    | McpListToolsInProgress
    | McpListToolsCompleted
    | McpListToolsFailed
    | McpCallInProgress
    | McpCallArgumentsDelta
    | McpCallArgumentsDone
    | McpCallCompleted
    | McpCallFailed
    | CodeInProgress
    | CodeDelta
    | CodeDone
    | CodeInterpreting
    | CodeCompleted
    | SearchInProgress
    | SearchSearching
    | SearchCompleted
)

StreamEvent = (
    WholeEvent | OutputTextDelta | ReasoningTextDelta | FunctionCallArgumentsDelta | CustomToolCallInputDelta
)
"""All events of a stream."""

TERMINAL = frozenset({"response.completed", "response.failed", "response.incomplete"})

_TEXT_DELTAS = {
    Kind.OUTPUT_TEXT_DELTA: OutputTextDelta,
    Kind.REASONING_TEXT_DELTA: ReasoningTextDelta,
}
_CALL_DELTAS = {
    Kind.FUNCTION_CALL_ARGUMENTS_DELTA: FunctionCallArgumentsDelta,
    Kind.CUSTOM_TOOL_CALL_INPUT_DELTA: CustomToolCallInputDelta,
}
_DELTA_TYPES = {
    kind: str(struct.__struct_config__.tag) for kind, struct in (_TEXT_DELTAS | _CALL_DELTAS).items()
} | {Kind.OUTPUT_TEXT_DELTA_WITH_LOGPROBS: str(OutputTextDelta.__struct_config__.tag)}
_decode_with_logprobs = msgspec.json.Decoder(tuple[str, list[Logprob]]).decode
_TYPE_START = len('{"type":"')
_encode = msgspec.json.Encoder().encode


def whole_event(event: WholeEvent) -> Event:
    """The stored form of an event that is not a delta: its JSON."""
    return Event(event.sequence_number, Kind.WHOLE, 0, 0, _encode(event).decode())


def text_delta(number: int, output_index: int, text: str, logprobs: Sequence[Logprob]) -> Event:
    """The stored form of a text delta, with its logprobs if there are any."""
    if not logprobs:
        return Event(number, Kind.OUTPUT_TEXT_DELTA, output_index, 0, text)
    body = _encode((text, logprobs)).decode()
    return Event(number, Kind.OUTPUT_TEXT_DELTA_WITH_LOGPROBS, output_index, 0, body)


def delta_of(event: Event) -> tuple[Kind, str, list[Logprob]]:
    """A delta's kind without logprobs, its text, and its logprobs."""
    if event.kind is Kind.OUTPUT_TEXT_DELTA_WITH_LOGPROBS:
        return Kind.OUTPUT_TEXT_DELTA, *_decode_with_logprobs(event.body)
    return event.kind, event.body, []


def event_type(event: Event) -> str:
    """The event's `type`."""
    if event.kind is Kind.WHOLE:
        return event.body[_TYPE_START : event.body.index('"', _TYPE_START)]
    return _DELTA_TYPES[event.kind]


def is_terminal(event: Event) -> bool:
    return event.kind is Kind.WHOLE and event_type(event) in TERMINAL


def render_all(response: UUID, events: Iterable[Event]) -> list[tuple[str, bytes]]:
    """The `type` of each event, and its JSON that clients receive."""
    return [(event_type(event), render(response, event)) for event in events]


def render(response: UUID, event: Event) -> bytes:
    """The event's JSON that clients receive."""
    if event.kind is Kind.WHOLE:
        return with_logprobs(event.body).encode()
    place = (
        event.sequence_number,
        ids.item_id(ITEM_PREFIX[event.kind], response, "o", event.output_index),
        event.output_index,
    )
    if event.kind in _CALL_DELTAS:
        return _encode(_CALL_DELTAS[event.kind](*place, event.body))
    if event.kind is Kind.OUTPUT_TEXT_DELTA_WITH_LOGPROBS:
        return _encode(OutputTextDelta(*place, event.content_index, *_decode_with_logprobs(event.body)))
    return _encode(_TEXT_DELTAS[event.kind](*place, event.content_index, event.body))
