"""A log of several turns, parted into them, and the run that it makes again. Pure but for the prompts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby

import msgspec

from engine.request import EngineRequest, Usage
from server.generation.run import Run, RunLog
from server.hosted_tools.tool_specs import ToolResult, tool_result_of
from server.prompting.engine_request import Prepared, engine_request_after
from server.prompting.next_turn import TurnBuilder
from server.protocol.responses.events import Event, Kind, OutputItemDone, delta_of, event_type
from server.protocol.responses.hosted_items import HostedCall
from server.protocol.responses.items import Compaction
from server.store.log.events import LogProgress

_CALLED = frozenset(
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
    """What one turn left in the log."""

    token_ids: list[int] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    called: dict[int, ToolResult] = field(default_factory=dict)
    """The calls that were made, by place. No token of the turn is stored after the first of them."""
    summed_up: bool = False
    """It wrote the summary of a compaction, and that is told."""


def parted(progress: LogProgress, told: Sequence[Event], *, writes_summary: bool = False) -> list[LoggedTurn]:
    """The turns of a log: a turn is over where a call of the server's has an outcome.

    The first of one that begins by `writes_summary` is over where its compaction is told.
    """
    turns = [LoggedTurn()]
    pieces = dict(progress.pieces)
    calling = False
    for event in told:
        kind = event_type(event)
        piece = pieces.pop(event.sequence_number, None)
        if calling and piece is not None:
            turns.append(LoggedTurn())
            calling = False
        calling = calling or kind in _CALLED
        turns[-1].token_ids += piece or []
        turns[-1].events.append(event)
        if event.kind is Kind.WHOLE and kind == "response.output_item.done":
            done = _decode_done(event.body)
            if writes_summary and isinstance(done.item, Compaction):
                calling, turns[-1].summed_up = True, True
            elif calling and isinstance(done.item, HostedCall):
                turns[-1].called[done.output_index] = tool_result_of(done.item)
    return turns


def replay(
    run: Run, turns: TurnBuilder, prepared: Prepared, progress: LogProgress, told: Sequence[Event]
) -> tuple[list[Event], EngineRequest | None]:
    """Brings a fresh run to where the log ends: what its tokens say now, and the engine request that goes on.

    Without an engine request the run is at its calls, and has an tool_work. Raises ApiError.
    """
    run.emit_start_events(RunLog(progress.token_ids, progress.next_seq, told, progress.first_token_at))
    at = progress.first_token_at or run.facts.created_at
    said: list[Event] = []
    engine_request, events = prepared.engine_request, []
    logged = parted(progress, told, writes_summary=run.writes_summary)
    for number, turn in enumerate(logged):
        if number:
            engine_request = _begin(run, turns, at)
        events = run.feed_logged_tokens(RunLog(turn.token_ids, 0, turn.events, progress.first_token_at))
        said += events
        again = turn.summed_up or run.awaiting_tools or turn.called
        if again or (
            run.has_pending_calls
            and turn.token_ids[-1] in engine_request.stop_ids | engine_request.stop_token_ids
        ):
            _call_again(run, turn, len(engine_request.prompt), at)
    run.set_next_seq(progress.next_seq)
    return said, None if run.next_step_is_tools else engine_request_after(
        engine_request, logged[-1].token_ids
    )


def _begin(run: Run, turns: TurnBuilder, at: datetime) -> EngineRequest:
    tool_work = run.take_tool_work()
    assert tool_work is not None, "a turn that follows calls which are not made"
    turn = turns.next_turn(tool_work.output, tool_work.turn, tool_work.output_tokens)
    assert turn is not None, "a turn that there was no token for"
    run.next_turn(turn.decoding_spec, len(turn.engine_request.prompt), at)
    return turn.engine_request


def _call_again(run: Run, turn: LoggedTurn, prompt_tokens: int, at: datetime) -> None:
    """Ends the turn, unless it is one of calls alone, and takes its calls' outcomes over from the log."""
    if not run.awaiting_tools:
        run.finish("stop", Usage(prompt_tokens + len(turn.token_ids)), at)
    for index, outcome in turn.called.items():
        run.finish_call(index, outcome, at)


def said(events: Iterable[Event]) -> list[tuple[Kind, int, str]]:
    """What each item said, however its deltas were cut."""
    deltas = [
        (kind, event.output_index, text)
        for event in events
        if event.kind is not Kind.WHOLE
        for kind, text, _ in [delta_of(event)]
    ]
    return [
        (*place, "".join(text for _, _, text in group))
        for place, group in groupby(deltas, key=lambda delta: delta[:2])
    ]
