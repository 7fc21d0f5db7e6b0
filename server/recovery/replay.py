"""A log of several turns, parted into them, and the run that it makes again. Pure but for the prompts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby

import msgspec

from engine.request import EngineRequest, Usage
from server.generation.run import Log, Run
from server.hosted_tools.tool_specs import ToolResult, tool_result_of
from server.prompting.engine_request import Prepared, engine_request_after
from server.prompting.next_turn import TurnBuilder
from server.protocol.responses.events import Event, Kind, OutputItemDone, delta_of, event_type
from server.protocol.responses.hosted_items import ServedCall
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
    told: list[Event] = field(default_factory=list)
    called: dict[int, ToolResult] = field(default_factory=dict)
    """The calls that were made, by place. No token of the turn is stored after the first of them."""
    summed_up: bool = False
    """It wrote the summary of a compaction, and that is told."""


def parted(progress: LogProgress, told: Sequence[Event], *, sums_up: bool = False) -> list[LoggedTurn]:
    """The turns of a log: a turn is over where a call of the server's has an outcome.

    The first of one that begins by `sums_up` is over where its compaction is told.
    """
    turns = [LoggedTurn()]
    pieces = dict(progress.token_chunks)
    calling = False
    for event in told:
        kind = event_type(event)
        piece = pieces.pop(event.sequence_number, None)
        if calling and piece is not None:
            turns.append(LoggedTurn())
            calling = False
        calling = calling or kind in _CALLED
        turns[-1].token_ids += piece or []
        turns[-1].told.append(event)
        if event.kind is Kind.WHOLE and kind == "response.output_item.done":
            done = _decode_done(event.body)
            if sums_up and isinstance(done.item, Compaction):
                calling, turns[-1].summed_up = True, True
            elif calling and isinstance(done.item, ServedCall):
                turns[-1].called[done.output_index] = tool_result_of(done.item)
    return turns


def replay(
    run: Run, turns: TurnBuilder, prepared: Prepared, progress: LogProgress, told: Sequence[Event]
) -> tuple[list[Event], EngineRequest | None]:
    """Brings a fresh run to where the log ends: what its tokens say now, and the engine request that goes on.

    Without an engine request the run is at its calls, and has an errand. Raises ApiError.
    """
    run.catch_up_to(Log(progress.token_ids, progress.next_seq, told, progress.first_token_at))
    at = progress.first_token_at or run.facts.created_at
    said: list[Event] = []
    engine_request, events = prepared.engine_request, []
    logged = parted(progress, told, sums_up=run.sums_up)
    for number, turn in enumerate(logged):
        if number:
            engine_request = _begin(run, turns, at)
        events = run.read_again(Log(turn.token_ids, 0, turn.told, progress.first_token_at))
        said += events
        again = turn.summed_up or run.calling or turn.called
        if again or (
            run.calls_due and turn.token_ids[-1] in engine_request.stop_ids | engine_request.stop_token_ids
        ):
            _call_again(run, turn, len(engine_request.prompt), at)
    run.go_on_at(progress.next_seq)
    return said, None if run.waits_for_calls else engine_request_after(engine_request, logged[-1].token_ids)


def _begin(run: Run, turns: TurnBuilder, at: datetime) -> EngineRequest:
    errand = run.take_errand()
    assert errand is not None, "a turn that follows calls which are not made"
    turn = turns.after(errand.output, errand.turn, errand.spent)
    assert turn is not None, "a turn that there was no token for"
    run.next_turn(turn.reading, len(turn.engine_request.prompt), at)
    return turn.engine_request


def _call_again(run: Run, turn: LoggedTurn, prompt_tokens: int, at: datetime) -> None:
    """Ends the turn, unless it is one of calls alone, and takes its calls' outcomes over from the log."""
    if not run.calling:
        run.finish("stop", Usage(prompt_tokens + len(turn.token_ids)), at)
    for index, outcome in turn.called.items():
        run.called(index, outcome, at)


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
