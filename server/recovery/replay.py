"""Splits an event log into model turns and replays them on a fresh run. Pure, except that prompts are
prepared again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby

import msgspec

from engine.request import EngineRequest, Usage
from server.generation.run import Run, RunLog
from server.hosted_tools.tool_specs import ToolResult, tool_result_of
from server.prompting.engine_request import Prepared, engine_request_after
from server.prompting.turns import TurnBuilder
from server.protocol.responses.events import Event, Kind, OutputItemDone, delta_of, event_type
from server.protocol.responses.hosted_items import HostedCall
from server.protocol.responses.items import Compaction
from server.store.log.events import LogProgress

_CALL_ENDS = frozenset(
    f"response.{end}"
    for end in (
        "mcp_call.completed",
        "mcp_call.failed",
        "code_interpreter_call.completed",
        "web_search_call.completed",
    )
)
_decode_done = msgspec.json.Decoder(OutputItemDone).decode


@dataclass(slots=True)
class LoggedTurn:
    """The part of a log that belongs to one turn."""

    token_ids: list[int] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    results: dict[int, ToolResult] = field(default_factory=dict)
    """Results of finished calls by output index. The log has no token of this turn after the first of
    them."""
    wrote_summary: bool = False
    """It wrote a compaction's summary, and the compaction item is done."""


def split_turns(
    progress: LogProgress, logged: Sequence[Event], *, writes_summary: bool = False
) -> list[LoggedTurn]:
    """The turns of a log. A turn ends where the log has the result of a hosted tool call.

    With `writes_summary` the first turn ends where the log has the finished compaction item.
    """
    turns = [LoggedTurn()]
    pieces = dict(progress.token_chunks)
    between_turns = False
    for event in logged:
        kind = event_type(event)
        piece = pieces.pop(event.sequence_number, None)
        if between_turns and piece is not None:
            turns.append(LoggedTurn())
            between_turns = False
        between_turns = between_turns or kind in _CALL_ENDS
        turns[-1].token_ids += piece or []
        turns[-1].events.append(event)
        if event.kind is Kind.WHOLE and kind == "response.output_item.done":
            done = _decode_done(event.body)
            if writes_summary and isinstance(done.item, Compaction):
                between_turns, turns[-1].wrote_summary = True, True
            elif between_turns and isinstance(done.item, HostedCall):
                turns[-1].results[done.output_index] = tool_result_of(done.item)
    return turns


def replay(
    run: Run, turns: TurnBuilder, prepared: Prepared, progress: LogProgress, logged: Sequence[Event]
) -> tuple[list[Event], EngineRequest | None]:
    """Brings a fresh run to the end of its log; returns the events that its tokens give now, and the engine
    request that continues it.

    Without an engine request the run is at its tool calls and has tool work. Raises ApiError.
    """
    run.emit_start_events(RunLog(progress.token_ids, progress.next_seq, logged, progress.first_token_at))
    at = progress.first_token_at or run.facts.created_at
    emitted: list[Event] = []
    engine_request, events = prepared.engine_request, []
    logged_turns = split_turns(progress, logged, writes_summary=run.writes_summary)
    for number, turn in enumerate(logged_turns):
        if number:
            engine_request = _next_turn(run, turns, at)
        events = run.feed_logged_tokens(RunLog(turn.token_ids, 0, turn.events, progress.first_token_at))
        emitted += events
        is_over = turn.wrote_summary or run.awaiting_tools or turn.results
        if is_over or (
            run.has_pending_calls
            and turn.token_ids[-1] in engine_request.stop_ids | engine_request.stop_token_ids
        ):
            _restore_results(run, turn, len(engine_request.prompt), at)
    run.set_next_seq(progress.next_seq)
    return emitted, None if run.next_step_is_tools else engine_request_after(
        engine_request, logged_turns[-1].token_ids
    )


def _next_turn(run: Run, turns: TurnBuilder, at: datetime) -> EngineRequest:
    tool_work = run.take_tool_work()
    assert tool_work is not None, "a turn that follows calls without results"
    turn = turns.next_turn(tool_work.output, tool_work.turn, tool_work.output_tokens)
    assert turn is not None, "a turn without a token left for it"
    run.next_turn(turn.decoding_spec, len(turn.engine_request.prompt), at)
    return turn.engine_request


def _restore_results(run: Run, turn: LoggedTurn, prompt_tokens: int, at: datetime) -> None:
    """Ends the turn, unless it only had approved calls, and applies the logged results of its calls."""
    if not run.awaiting_tools:
        run.finish("stop", Usage(prompt_tokens + len(turn.token_ids)), at)
    for index, outcome in turn.results.items():
        run.finish_call(index, outcome, at)


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
