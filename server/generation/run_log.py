"""`RunLog`: a response's event log as the state of its run: tokens, output items, model turns, texts. Pure.

The log has what earlier attempts committed. Recovery continues a run from it, or ends one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby

from server.generation.hosted_items import CALL_EVENTS, tool_result_of
from server.generation.hosted_tools_of_response import ToolResult
from server.protocol.responses.events import Event, Kind, decode_added, decode_done, delta_of, event_type
from server.protocol.responses.items import (
    AnsweredByItem,
    Compaction,
    HostedCall,
    ShellCallOutput,
    ToolSearchOutput,
)

_CALL_ENDS = frozenset(
    str(end.__struct_config__.tag)
    for events in CALL_EVENTS.values()
    for end in (events.completed, events.failed)
)


@dataclass(slots=True)
class LoggedTurn:
    """The part of a log that belongs to one model turn."""

    token_ids: list[int] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    results: dict[int, ToolResult] = field(default_factory=dict)
    """Results of finished calls by output index; the turn has no token after the first of them."""
    compacts: bool = False
    """The turn is a compaction's alone."""
    has_compacted: bool = False
    """The compaction item is done."""


@dataclass(frozen=True, slots=True)
class RunLog:
    """All that earlier attempts have committed of a run."""

    token_chunks: Sequence[tuple[int, Sequence[int]]]
    """Tokens that were committed together, after the sequence number of their first event."""
    next_seq: int
    events: Sequence[Event]
    first_token_at: datetime | None
    has_gap: bool = False
    """Numbers are missing, and with them perhaps tokens: the response cannot go on from it."""

    @property
    def token_ids(self) -> list[int]:
        return [token for _, token_ids in self.token_chunks for token in token_ids]

    def has_summaries(self) -> bool | None:
        """Whether the reasoning has summaries; None if there is no reasoning."""
        kinds = {event_type(event) for event in self.events}
        if "response.reasoning_summary_part.added" in kinds:
            return True
        return False if "response.reasoning_text.delta" in kinds else None

    def turns(self, *, writes_summary: bool = False) -> list[LoggedTurn]:
        """The turns. A turn ends where the log has the result of a hosted tool call.

        One that compacts begins with the compaction item and ends where that is finished. The first one may
        go on with an answer after the item: it compacts only with `writes_summary`.
        """
        turns = [LoggedTurn(compacts=writes_summary)]
        chunks = dict(self.token_chunks)
        calls: dict[str | None, int] = {}
        between_turns = False
        for event in self.events:
            kind = event_type(event)
            token_ids = chunks.pop(event.sequence_number, None)
            begins_item = between_turns and kind == "response.output_item.added"
            compacts = begins_item and isinstance(decode_added(event.body).item, Compaction)
            if compacts or (between_turns and token_ids is not None):
                turns.append(LoggedTurn(compacts=compacts))
                between_turns = False
            between_turns = between_turns or kind in _CALL_ENDS
            turns[-1].token_ids += token_ids or []
            turns[-1].events.append(event)
            if kind == "response.output_item.done":
                done = decode_done(event.body)
                if turns[-1].compacts and isinstance(done.item, Compaction):
                    between_turns, turns[-1].has_compacted = True, True
                elif isinstance(done.item, AnsweredByItem):
                    calls[done.item.call_id] = done.output_index
                elif isinstance(done.item, ToolSearchOutput | ShellCallOutput):
                    between_turns = True
                    turns[-1].results[calls[done.item.call_id]] = tool_result_of(done.item)
                elif between_turns and isinstance(done.item, HostedCall):
                    turns[-1].results[done.output_index] = tool_result_of(done.item)
        return turns


def texts(events: Iterable[Event]) -> list[tuple[Kind, int, str]]:
    """The text of each consecutive run of deltas of one kind and item, however the deltas were cut."""
    deltas = [
        (kind, event.output_index, text)
        for event in events
        if event.kind is not Kind.WHOLE
        for kind, text, _ in [delta_of(event)]
    ]
    return [
        (*key, "".join(text for _, _, text in group))
        for key, group in groupby(deltas, key=lambda delta: delta[:2])
    ]
