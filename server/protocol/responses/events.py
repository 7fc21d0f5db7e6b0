"""Stream events of the Responses API, and the compact form in which the event log stores them: `Event`.
`render` returns the JSON that clients receive, `frame` the server-sent event; both are deterministic, so a
replay equals the first stream.
"""

import re
from collections.abc import Iterable, Sequence
from enum import IntEnum
from functools import lru_cache, reduce
from operator import or_
from typing import Any, Literal, NamedTuple, TypeVar
from uuid import UUID
from zlib import crc32

import msgspec

from server.protocol import ids
from server.protocol.responses.items import (
    Item,
    Logprob,
    OutputText,
    ReasoningText,
    ShellOutput,
    SummaryText,
)
from server.protocol.responses.response import Echo, Response, ResponseFacts, Status, build_response

FIRST_EVENTS = 2
"""Events that `first_events` gives."""


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


class WholeEvent(_Event, frozen=True):
    """An event that is stored as its JSON."""


_E = TypeVar("_E", bound=WholeEvent)


def _event(fields: type[_E], name: str, kind: str) -> type[_E]:
    """An event with the fields of another class, and a `type` of its own."""
    return msgspec.defstruct(name, [], bases=(fields,), frozen=True, tag=kind, module=__name__)  # type: ignore[return-value]


class ResponseEvent(WholeEvent, frozen=True):
    response: Response


ResponseCreated = _event(ResponseEvent, "ResponseCreated", "response.created")
ResponseQueued = _event(ResponseEvent, "ResponseQueued", "response.queued")
ResponseInProgress = _event(ResponseEvent, "ResponseInProgress", "response.in_progress")
ResponseCompleted = _event(ResponseEvent, "ResponseCompleted", "response.completed")
ResponseFailed = _event(ResponseEvent, "ResponseFailed", "response.failed")
ResponseIncomplete = _event(ResponseEvent, "ResponseIncomplete", "response.incomplete")


class TokenIdsEvent(WholeEvent, frozen=True, tag="holdfast:tokens"):
    """Token ids of the prompt or of the output, sent before the text on request; an extension."""

    side: Literal["prompt", "output"]
    token_ids: list[int]


class _OutputItemEvent(WholeEvent, frozen=True):
    output_index: int
    item: Item


class OutputItemAdded(_OutputItemEvent, frozen=True, tag="response.output_item.added"): ...


class OutputItemDone(_OutputItemEvent, frozen=True, tag="response.output_item.done"): ...


class ItemEvent(WholeEvent, frozen=True):
    item_id: str
    output_index: int


class _ContentEvent(ItemEvent, frozen=True):
    content_index: int


class ContentPartAdded(_ContentEvent, frozen=True, tag="response.content_part.added"):
    part: OutputText | ReasoningText


class ContentPartDone(_ContentEvent, frozen=True, tag="response.content_part.done"):
    part: OutputText | ReasoningText


class OutputTextDone(_ContentEvent, frozen=True, tag="response.output_text.done"):
    text: str
    logprobs: Sequence[Logprob] = ()


class ReasoningTextDone(_ContentEvent, frozen=True, tag="response.reasoning_text.done"):
    text: str


class _SummaryEvent(ItemEvent, frozen=True):
    summary_index: int


class ReasoningSummaryPartAdded(_SummaryEvent, frozen=True, tag="response.reasoning_summary_part.added"):
    part: SummaryText


class ReasoningSummaryTextDelta(_SummaryEvent, frozen=True, tag="response.reasoning_summary_text.delta"):
    """Stored as a whole event, as only requests for a summary have any."""

    delta: str


class ReasoningSummaryTextDone(_SummaryEvent, frozen=True, tag="response.reasoning_summary_text.done"):
    text: str


class ReasoningSummaryPartDone(_SummaryEvent, frozen=True, tag="response.reasoning_summary_part.done"):
    part: SummaryText


class FunctionCallArgumentsDone(WholeEvent, frozen=True, tag="response.function_call_arguments.done"):
    item_id: str
    name: str
    output_index: int
    arguments: str


class CustomToolCallInputDone(ItemEvent, frozen=True, tag="response.custom_tool_call_input.done"):
    input: str


class StreamError(_Event, frozen=True, tag="error"):
    """The stream cannot go on."""

    code: str
    message: str
    param: None = None


CompactionCompacting = _event(ItemEvent, "CompactionCompacting", "response.compaction.compacting")
McpListToolsInProgress = _event(ItemEvent, "McpListToolsInProgress", "response.mcp_list_tools.in_progress")
McpListToolsCompleted = _event(ItemEvent, "McpListToolsCompleted", "response.mcp_list_tools.completed")
McpListToolsFailed = _event(ItemEvent, "McpListToolsFailed", "response.mcp_list_tools.failed")
McpCallInProgress = _event(ItemEvent, "McpCallInProgress", "response.mcp_call.in_progress")


class McpCallArgumentsDelta(ItemEvent, frozen=True, tag="response.mcp_call_arguments.delta"):
    """All arguments in one delta, as OpenAI sends them; stored as a whole event."""

    delta: str


class McpCallArgumentsDone(ItemEvent, frozen=True, tag="response.mcp_call_arguments.done"):
    arguments: str


McpCallCompleted = _event(ItemEvent, "McpCallCompleted", "response.mcp_call.completed")
McpCallFailed = _event(ItemEvent, "McpCallFailed", "response.mcp_call.failed")
CodeInProgress = _event(ItemEvent, "CodeInProgress", "response.code_interpreter_call.in_progress")


class CodeDelta(ItemEvent, frozen=True, tag="response.code_interpreter_call_code.delta"):
    delta: str


class CodeDone(ItemEvent, frozen=True, tag="response.code_interpreter_call_code.done"):
    code: str


CodeInterpreting = _event(ItemEvent, "CodeInterpreting", "response.code_interpreter_call.interpreting")
CodeCompleted = _event(ItemEvent, "CodeCompleted", "response.code_interpreter_call.completed")
SearchInProgress = _event(ItemEvent, "SearchInProgress", "response.web_search_call.in_progress")
SearchSearching = _event(ItemEvent, "SearchSearching", "response.web_search_call.searching")
SearchCompleted = _event(ItemEvent, "SearchCompleted", "response.web_search_call.completed")


class _CommandEvent(WholeEvent, frozen=True):
    output_index: int
    command_index: int


class _WholeCommand(_CommandEvent, frozen=True):
    command: str


ShellCommandAdded = _event(_WholeCommand, "ShellCommandAdded", "response.shell_call_command.added")
ShellCommandDone = _event(_WholeCommand, "ShellCommandDone", "response.shell_call_command.done")


class ShellCommandDelta(_CommandEvent, frozen=True, tag="response.shell_call_command.delta"):
    """A whole command in one delta."""

    delta: str


class ShellOutputDelta(ItemEvent, frozen=True, tag="response.shell_call_output_content.delta"):
    """All that a command wrote, in one delta."""

    command_index: int
    delta: dict[str, str]


class ShellOutputDone(ItemEvent, frozen=True, tag="response.shell_call_output_content.done"):
    command_index: int
    output: list[ShellOutput]


class _TextDelta(_Event, frozen=True):
    item_id: str
    output_index: int
    content_index: int
    delta: str


class OutputTextDelta(_TextDelta, frozen=True, tag="response.output_text.delta"):
    logprobs: Sequence[Logprob] = ()


class ReasoningTextDelta(_TextDelta, frozen=True, tag="response.reasoning_text.delta"): ...


class _CallDelta(_Event, frozen=True):
    item_id: str
    output_index: int
    delta: str


class FunctionCallArgumentsDelta(_CallDelta, frozen=True, tag="response.function_call_arguments.delta"): ...


class CustomToolCallInputDelta(_CallDelta, frozen=True, tag="response.custom_tool_call_input.delta"): ...


_TYPES = tuple(
    kind
    for kind in list(globals().values())
    if isinstance(kind, type) and issubclass(kind, _Event) and not kind.__subclasses__()
)
StreamEvent: Any = reduce(or_, _TYPES)
TERMINAL = frozenset({"response.completed", "response.failed", "response.incomplete"})

_CALL_DELTAS = {
    Kind.FUNCTION_CALL_ARGUMENTS_DELTA: FunctionCallArgumentsDelta,
    Kind.CUSTOM_TOOL_CALL_INPUT_DELTA: CustomToolCallInputDelta,
}
_DELTAS: dict[Kind, type[_Event]] = {
    **dict.fromkeys((Kind.OUTPUT_TEXT_DELTA, Kind.OUTPUT_TEXT_DELTA_WITH_LOGPROBS), OutputTextDelta),
    Kind.REASONING_TEXT_DELTA: ReasoningTextDelta,
    **_CALL_DELTAS,
}
_DELTA_TYPES = {kind: str(delta.__struct_config__.tag) for kind, delta in _DELTAS.items()}
_DELTA_TYPE_BYTES = {kind: name.encode() for kind, name in _DELTA_TYPES.items()}
_decode_with_logprobs = msgspec.json.Decoder(tuple[str, list[Logprob]]).decode
_TYPE_START = len('{"type":"')
_encode = msgspec.json.Encoder().encode
decode_added = msgspec.json.Decoder(OutputItemAdded).decode
decode_done = msgspec.json.Decoder(OutputItemDone).decode


def whole_event(event: WholeEvent) -> Event:
    """The stored form of an event that is not a delta: its JSON."""
    return Event(event.sequence_number, Kind.WHOLE, 0, 0, _encode(event).decode())


def first_events(facts: ResponseFacts, echo: Echo) -> list[Event]:
    """The events that are committed with the row: `response.created`, then `.queued` or `.in_progress`."""
    second = ResponseQueued if facts.background else ResponseInProgress
    status: Status = "queued" if facts.background else "in_progress"
    response = build_response(facts.id, facts.created_at, echo, status, [])
    return [whole_event(ResponseCreated(0, response)), whole_event(second(1, response))]


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
    if event.kind is Kind.WHOLE:
        return event.body[_TYPE_START : event.body.index('"', _TYPE_START)]
    return _DELTA_TYPES[event.kind]


@lru_cache(maxsize=4096)
def _item_id(kind: Kind, response: UUID, index: int) -> str:
    """The id of the item that a delta belongs to. Cached, because it takes as long to make as the JSON."""
    return ids.item_id(ITEM_PREFIX[kind], response, "o", index)


def render(response: UUID, event: Event) -> bytes:
    """The event's JSON that clients receive."""
    if event.kind is Kind.WHOLE:
        return event.body.encode()
    number, index = event.sequence_number, event.output_index
    item = _item_id(event.kind, response, index)
    if event.kind is Kind.OUTPUT_TEXT_DELTA:  # by far the most
        return _encode(OutputTextDelta(number, item, index, event.content_index, event.body))
    if event.kind in _CALL_DELTAS:
        return _encode(_CALL_DELTAS[event.kind](number, item, index, event.body))
    if event.kind is Kind.REASONING_TEXT_DELTA:
        return _encode(ReasoningTextDelta(number, item, index, event.content_index, event.body))
    _, text, logprobs = delta_of(event)
    return _encode(OutputTextDelta(number, item, index, event.content_index, text, logprobs))


def frame(response: UUID, event: Event, attempt: int | None = None) -> bytes:
    """`id:`, `event:` and `data:` lines and the blank line, with LF. EventSource sends the id as
    Last-Event-ID; it has a mark (`EventId`) if `attempt` wrote the event to the log. It comes first for
    clients that split at `data: `.
    """
    kind = _DELTA_TYPE_BYTES.get(event.kind) or event_type(event).encode()
    data = render(response, event)
    if attempt is None:
        return b"id: %d\nevent: %b\ndata: %b\n\n" % (event.sequence_number, kind, data)
    number = event.sequence_number
    return b"id: %d-%d.%08x\nevent: %b\ndata: %b\n\n" % (number, attempt, crc32(data), kind, data)


def frames(response: UUID, events: Iterable[Event], attempt: int | None = None) -> tuple[bytes, ...]:
    return tuple([frame(response, event, attempt) for event in events])


def error_frame(number: int, code: str, message: str) -> bytes:
    """An `error` event, which ends a stream and is not stored. It has no id: a browser keeps the last one."""
    return b"event: error\ndata: %b\n\n" % _encode(StreamError(number, code, message))


def split_frame(frame: bytes) -> tuple[bytes, bytes]:
    """The type and the JSON of a frame: the inverse of `frame`."""
    *_, head, data = frame[:-2].rsplit(b"\n", 2)
    return head.removeprefix(b"event: "), data.removeprefix(b"data: ")


EVENT_ID = r"^[0-9]{1,9}-[0-9]{1,9}\.[0-9a-f]{8}$"
_ID = re.compile(r"(?P<number>[0-9]{1,9})(?:-(?P<mark>[0-9]{1,9}\.[0-9a-f]{8}))?")
_LINE = b"id: "


class EventId(NamedTuple):
    """The number and mark of an event, by which a client that resumes a stream notices that it has forked.
    The mark is the attempt that wrote the event and the CRC-32 of its JSON, as in `57-2.9f3c07aa`. Numbers
    are used again after a loss of commits, mostly by another attempt; by the same one, differing events have
    equal marks once in four billion times. Events of a response that is not stored have none.
    """

    number: int
    mark: str | None = None

    def may_be(self, other: "EventId") -> bool:
        """Whether both can be of the same event: the numbers are equal, and the marks where both have one."""
        return self.number == other.number and (None in (self.mark, other.mark) or self.mark == other.mark)


def parse_event_id(text: str) -> EventId | None:
    """The event's id in a text; None for what was never one."""
    match = _ID.fullmatch(text)
    return None if match is None else EventId(int(match["number"]), match["mark"])


def frame_id(frame: bytes) -> EventId | None:
    """The id of a frame; None if it has no `id:` line."""
    line = frame.partition(b"\n")[0]
    return parse_event_id(line.removeprefix(_LINE).decode()) if line.startswith(_LINE) else None


def same_event(frame: bytes, other: bytes) -> bool:
    """Whether two frames are of one event, as far as their ids tell."""
    if frame == other:
        return True
    first, second = frame_id(frame), frame_id(other)
    return first is not None and second is not None and first.may_be(second)
