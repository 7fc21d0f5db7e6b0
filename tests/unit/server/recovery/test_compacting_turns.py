"""A tool loop with a compaction in its midst, cut off after every commit and rebuilt from what is stored."""

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from engine.request import TokenUsage
from server.generation.hosted_tools_of_response import HostedTools, ListedServer, PendingToolWork, ToolResult
from server.generation.output_decoding import CompactionSpec, DecodingSpec, no_decoding
from server.generation.run import Run
from server.generation.run_log import RunLog
from server.model_formats.model_format import CallDelta, CallEnd, CallStart, Delta, TextDelta
from server.prompting.turns import NextTurn
from server.protocol.responses.events import Event, first_events
from server.protocol.responses.items import Compaction, HostedCall, ListedTool, encode_item
from server.protocol.responses.response import TurnUsage
from server.recovery.rebuild_run import _replay
from tests.support.builders import LATER, make_facts
from tests.support.engines import make_request

CALL: list[Delta] = [CallStart("find", namespace="city"), CallDelta("{}"), CallEnd()]
TURNS: dict[str, list[list[Delta]]] = {
    "first": [[TextDelta("Let me ")], [TextDelta("look.")], CALL],
    "summary": [[TextDelta("They ")], [TextDelta("met.")]],
    "answer": [[TextDelta("Rain")], [TextDelta(".")]],
}
STOP = 99


class PlayedParser:
    """Each token stands for deltas; STOP, which ends a turn, for none."""

    reasoning_tokens = 0

    def __init__(self, name: str) -> None:
        self.said = TURNS[name]

    def feed(self, token_ids: Sequence[int]) -> list[Delta]:
        return [delta for token in token_ids if token != STOP for delta in self.said[token]]

    def close(self) -> list[Delta]:
        return []


def decoding(name: str, compaction: CompactionSpec | None = None) -> DecodingSpec:
    tools = HostedTools([ListedServer("city", [ListedTool("find")])])
    return DecodingSpec(PlayedParser(name), hosted=tools, compaction=compaction)


class Turns:
    """The turns after the first: they depend on the output alone."""

    def __init__(self, *, by_model: bool) -> None:
        self._by_model = by_model

    def next_turn(self, work: PendingToolWork) -> NextTurn:
        output = work.output
        request = make_request(f"r.{work.turn + 1}", [1] * 8, stop_ids=frozenset({STOP}))
        if isinstance(output[-1], Compaction):
            return NextTurn(request, decoding("answer"))
        spec = CompactionSpec(lambda item_id, written: f"{item_id}: {written}", self._by_model, answers=True)
        assert isinstance(output[-1], HostedCall)
        if self._by_model:
            return NextTurn(request, decoding("summary", spec))
        return NextTurn(None, DecodingSpec(no_decoding().parser, compaction=spec))


class Recorder:
    """What is stored of a run: events, and tokens with the first event after them, as in the recorder."""

    def __init__(self, log: RunLog | None = None) -> None:
        self._events = list(log.events) if log else []
        self._chunks = list(log.token_chunks) if log else []
        self._waiting: list[int] = []

    def commit(self, events: Sequence[Event], token_ids: Sequence[int] = ()) -> RunLog:
        self._waiting += token_ids
        if events:
            if self._waiting:
                self._chunks.append((events[0].sequence_number, tuple(self._waiting)))
            self._events += events
            self._waiting = []
        return RunLog(tuple(self._chunks), len(self._events), tuple(self._events), LATER)


def go_on(run: Run, turns: Any, recorder: Recorder, fed: int = 0) -> Iterator[RunLog]:
    """Plays the rest of a response, whose current turn has `fed` tokens already; the log after each step."""
    while run.ending is None:
        if run.awaiting_tools:
            work = run.take_tool_work()
            assert work is not None
            for due in work.calls:
                yield recorder.commit(run.finish_call(due.index, ToolResult("Rain."), LATER))
            if not work.calls:
                turn = turns.next_turn(work)
                yield recorder.commit(run.next_turn(turn.decoding_spec, turn.prompt_tokens, LATER))
            fed = 0
            continue
        name = "first" if run.turn == 0 else "summary" if run.writes_summary else "answer"
        played = [*range(len(TURNS[name])), STOP]
        for token in played[fed:]:
            yield recorder.commit(run.tokens([token], LATER), [token])
        usage = TokenUsage(8 + fed, output=len(played) - fed)
        yield recorder.commit(run.finish("stop", usage, LATER))


def told(run: Run) -> tuple[list[bytes], Sequence[TurnUsage]]:
    assert run.ending is not None
    return [encode_item(item) for item in run.output], run.ending.turns


@pytest.mark.parametrize("by_model", [True, False])
def test_a_loop_cut_off_after_any_commit_comes_to_the_same_end(by_model: bool) -> None:
    turns: Any = Turns(by_model=by_model)
    facts = make_facts(prompt_tokens=8)
    uncut, recorder = Run(facts, decoding("first")), Recorder()
    logs = [recorder.commit(first_events(facts, facts.echo))]
    logs.append(recorder.commit(uncut.start()))
    logs += go_on(uncut, turns, recorder)
    assert [item.__struct_config__.tag for item in uncut.output] == [
        "mcp_list_tools",
        "message",
        "mcp_call",
        "compaction",
        "message",
    ]
    prepared: Any = SimpleNamespace(engine_request=make_request("r", [1] * 8, stop_ids=frozenset({STOP})))
    for log in logs[:-1]:
        run = Run(facts, decoding("first"))
        _, engine_request = _replay(run, turns, prepared, log)
        assert run.next_seq == log.next_seq
        recorder = Recorder(log)
        if not run.started:
            recorder.commit(run.start())
        fed = 0 if engine_request is None else len(engine_request.prompt) - 8
        *_, last = go_on(run, turns, recorder, fed)
        assert [event.sequence_number for event in last.events] == list(range(len(last.events)))
        assert told(run) == told(uncut)
