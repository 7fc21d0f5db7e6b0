"""A response whose tools the server runs, without a server: deltas in, events and errands out."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from engine.request import TokenUsage
from server.errors import InvalidRequest
from server.generation.hosted_items import DENIED, items_for_model, tool_result_of
from server.generation.hosted_tools_of_response import HostedTools, ListedServer, ToolResult, approved_calls
from server.generation.output_decoding import DecodingSpec
from server.generation.run import Run
from server.hosted_tools.mcp_discovery import check_approved_calls
from server.model_formats.model_format import CallDelta, CallEnd, CallStart, Delta, TextDelta
from server.prompting.compaction_items import pending_calls
from server.protocol.responses.events import Event, event_type, first_events, render
from server.protocol.responses.items import (
    CodeInterpreterCall,
    FunctionCall,
    FunctionCallOutput,
    HostedCall,
    InputText,
    Item,
    ListedTool,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    McpError,
    McpListTools,
    Message,
    WebSearchCall,
)
from server.protocol.responses.tools import ApprovalFilter, McpTool, ToolFilter
from tests.support.builders import LATER, RESPONSE, SDK_EVENT, make_facts

TOOLS = [ListedTool("find"), ListedTool("read", annotations={"readOnlyHint": True})]
CITY = ListedServer("city", TOOLS)
ASKED = McpApprovalRequest("mcpr_1", "city", "find", '{"a":1}')
USER = Message("msg_1", "completed", "user", [InputText("Hi")])


class PlayedParser:
    """Each token stands for deltas."""

    reasoning_tokens = 0

    def __init__(self, said: Sequence[Sequence[Delta]]) -> None:
        self._said = said

    def feed(self, token_ids: Sequence[int]) -> list[Delta]:
        return [delta for token in token_ids for delta in self._said[token]]

    def close(self) -> list[Delta]:
        return []


def call(name: str = "find", label: str | None = "city") -> list[Delta]:
    return [CallStart(name, namespace=label), CallDelta("{}"), CallEnd()]


def reading(said: Sequence[Sequence[Delta]], hosted: HostedTools) -> DecodingSpec:
    return DecodingSpec(PlayedParser(said), hosted=hosted)


def play(
    said: Sequence[Sequence[Delta]], hosted: HostedTools, *, ends: bool = True
) -> tuple[Run, list[Event]]:
    """A run after its first turn, in which each token says what it stands for."""
    run = Run(make_facts(), reading(said, hosted))
    events = first_events(run.facts, run.facts.echo) + run.start() + run.tokens(range(len(said)), LATER)
    if ends:
        events += run.finish("stop", TokenUsage(5, 2, len(said)), LATER)
    return run, events


def types(events: Sequence[Event]) -> list[str]:
    return [event_type(event).removeprefix("response.") for event in events]


def kinds(run: Run) -> list[str]:
    return [str(item.__struct_config__.tag) for item in run.output]


def test_a_call_is_told_in_openais_order_and_the_model_goes_on_behind_it() -> None:
    run, events = play([call()], HostedTools([CITY]))
    assert types(events)[2:] == [
        "output_item.added",
        "mcp_list_tools.in_progress",
        "mcp_list_tools.completed",
        "output_item.done",
        "output_item.added",
        "mcp_call.in_progress",
        "mcp_call_arguments.delta",
        "mcp_call_arguments.done",
    ]
    tool_work = run.take_tool_work()
    assert tool_work is not None
    assert [(due.index, due.within_limit, due.repeatable) for due in tool_work.calls] == [(1, True, False)]
    told = run.finish_call(1, ToolResult("sunny"), LATER)
    assert types(told) == ["mcp_call.completed", "output_item.done"]
    tool_work = run.take_tool_work()
    assert tool_work is not None
    assert (tool_work.calls, tool_work.turn, tool_work.output_tokens) == ((), 0, 1)
    rest = run.next_turn(reading([[TextDelta("Sunny.")]], HostedTools()), 9, LATER)
    rest += run.tokens([0], LATER) + run.finish("stop", TokenUsage(9, 5, 1), LATER)
    assert kinds(run) == ["mcp_list_tools", "mcp_call", "message"]
    every = [*events, *told, *rest]
    assert [event.sequence_number for event in every] == list(range(len(every)))
    for event in every:
        SDK_EVENT.validate_json(render(RESPONSE, event))
    assert run.ending is not None
    usage = (run.ending.input_tokens, run.ending.cached_tokens, run.ending.output_tokens)
    assert usage == (14, 7, 2)


def test_what_tells_that_a_call_was_perhaps_made_comes_with_the_end_of_its_turn() -> None:
    _, before = play([call(), call("read")], HostedTools([CITY]), ends=False)
    assert types(before).count("mcp_call_arguments.delta") == 2
    assert types(before).count("mcp_call_arguments.done") == 1
    _, after = play([call(), call("read")], HostedTools([CITY]))
    assert types(after)[-1] == "mcp_call_arguments.done"


def test_a_call_that_must_be_allowed_ends_the_response_and_is_not_made() -> None:
    run, events = play(
        [call()], HostedTools([ListedServer("city", TOOLS, approval_required=frozenset({"find"}))])
    )
    assert kinds(run) == ["mcp_list_tools", "mcp_approval_request"]
    assert types(events)[-3:] == ["output_item.added", "output_item.done", "completed"]
    assert run.take_tool_work() is None


@pytest.mark.parametrize("order", [0, 1])
def test_the_servers_calls_are_made_before_a_response_ends_with_the_clients(order: int) -> None:
    said = [call(), call("ask", None)]
    run, _ = play(said[order:] + said[:order], HostedTools([CITY]))
    tool_work = run.take_tool_work()
    assert tool_work is not None
    assert run.ending is None
    events = run.finish_call(tool_work.calls[0].index, ToolResult("sunny"), LATER)
    assert types(events)[-1] == "completed"
    assert sorted(kinds(run)) == ["function_call", "mcp_call", "mcp_list_tools"]
    assert run.take_tool_work() is None


def test_calls_beyond_the_requests_limit_are_not_allowed() -> None:
    run, _ = play([call(), call("read"), call()], HostedTools([CITY], max_calls=2))
    tool_work = run.take_tool_work()
    assert tool_work is not None
    assert [due.within_limit for due in tool_work.calls] == [True, True, False]
    assert [due.repeatable for due in tool_work.calls] == [False, True, False]


def test_a_call_that_is_cut_off_is_incomplete_and_not_made() -> None:
    run, _ = play([call()[:2]], HostedTools([CITY]), ends=False)
    run.finish("length", TokenUsage(5, 2, 1), LATER)
    assert [item.status for item in run.output] == ["completed", "incomplete"]
    assert run.take_tool_work() is None
    assert run.ending is not None
    assert run.ending.status == "incomplete"


def test_a_response_that_is_cancelled_at_its_calls_leaves_them_incomplete() -> None:
    run, _ = play([call()], HostedTools([CITY]))
    run.request_cancel(LATER)
    assert run.ending is not None
    assert run.ending.status == "cancelled"
    assert run.output[-1].status == "incomplete"
    assert run.finish_call(1, ToolResult("late"), LATER) == []


def test_calls_that_were_allowed_come_before_the_model() -> None:
    hosted = HostedTools([ListedServer("city", TOOLS, is_new=False)], approved_calls=[ASKED])
    run = Run(make_facts(), reading([], hosted))
    assert run.next_step_is_tools
    events = first_events(run.facts, run.facts.echo) + run.start()
    assert types(events)[2:] == [
        "output_item.added",
        "mcp_call.in_progress",
        "mcp_call_arguments.delta",
        "mcp_call_arguments.done",
    ]
    tool_work = run.take_tool_work()
    assert tool_work is not None
    (due,) = tool_work.calls
    assert (due.call.approval_request_id, due.call.arguments) == ("mcpr_1", '{"a":1}')
    run.finish_call(0, ToolResult("sunny"), LATER)
    assert run.take_tool_work() is not None


def answer(approve: bool = True, to: str = "mcpr_1") -> McpApprovalResponse:
    return McpApprovalResponse("mcpa_1", to, approve, None if approve else "Too dear.")


MADE = McpCall("mcp_1", "completed", "city", "find", "{}", "sunny", None, "mcpr_1")


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([ASKED, answer()], [ASKED]),
        ([ASKED, answer(), USER], [ASKED]),
        ([ASKED, answer(approve=False)], []),
        ([ASKED, USER], []),
        ([ASKED, answer(), MADE], []),
        ([ASKED, answer(), MADE, USER], []),
        ([answer()], []),
    ],
)
def test_what_was_allowed_after_the_models_last_word_is_to_be_called(
    items: list[Item], expected: list[Item]
) -> None:
    assert approved_calls(items) == expected


@pytest.mark.parametrize(
    ("items", "output"),
    [
        ([ASKED, answer(), MADE], "sunny"),
        ([ASKED, answer(approve=False)], f"{DENIED} Too dear."),
        ([ASKED, answer()], "The call was not finished."),
        ([ASKED], "The user has not allowed this call."),
    ],
)
def test_the_model_reads_each_call_once_with_what_became_of_it(items: list[Item], output: str) -> None:
    lists = McpListTools("mcpl_1", "city", TOOLS)
    read = items_for_model([USER, lists, *items])
    assert [type(item) for item in read] == [Message, FunctionCall, FunctionCallOutput]
    assert isinstance(read[2], FunctionCallOutput)
    assert read[2].output == output


def test_an_allowed_call_whose_tool_is_not_declared_again_is_refused() -> None:
    for hosted in (
        HostedTools(approved_calls=[ASKED]),
        HostedTools([ListedServer("city", TOOLS[1:])], approved_calls=[ASKED]),
    ):
        with pytest.raises(InvalidRequest, match="city"):
            check_approved_calls(hosted)
    check_approved_calls(HostedTools([CITY], approved_calls=[ASKED]))


FIND, READ = ToolFilter(["find"]), ToolFilter(read_only=True)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (None, [True, True]),
        ("always", [True, True]),
        ("never", [False, False]),
        (ApprovalFilter(never=READ), [True, False]),
        (ApprovalFilter(always=FIND), [True, False]),
        (ApprovalFilter(always=READ, never=FIND), [False, True]),
        (ApprovalFilter(always=FIND, never=FIND), [True, True]),
    ],
)
def test_which_tools_must_be_allowed_is_said_by_the_request(asked: Any, expected: list[bool]) -> None:
    tool = McpTool(server_label="city", require_approval=asked)
    assert [tool.needs_approval(listed) for listed in TOOLS] == expected


def test_a_call_that_waits_to_be_allowed_stays_when_the_rest_is_compacted() -> None:
    assert pending_calls([USER, ASKED]) == [ASKED]
    assert pending_calls([USER, ASKED, answer()]) == []


def test_items_are_stored_and_read_back_as_they_were() -> None:
    for item in (MADE, ASKED, answer(), McpListTools("mcpl_1", "city", TOOLS)):
        assert msgspec.json.decode(msgspec.json.encode(item), type=type(item)) == item


CODE = ListedServer("python", [ListedTool("python")], is_new=False, call_type="code")
WEB = ListedServer("browser", [ListedTool("search")], is_new=False, call_type="search")


@pytest.mark.parametrize("kind", ["function", "custom"])
def test_code_is_told_as_code_however_the_model_wrote_it(kind: Any) -> None:
    text = '{"code": "1 + 1"}' if kind == "function" else "1 + 1"
    said: list[Delta] = [CallStart("python", kind=kind, namespace="python"), CallDelta(text), CallEnd()]
    run, events = play([said], HostedTools([CODE]))
    tool_work = run.take_tool_work()
    assert tool_work is not None
    (due,) = tool_work.calls
    assert (due.call.server_label, due.call.name) == ("python", "python")
    assert msgspec.json.decode(due.call.arguments) == {"code": "1 + 1"}
    events += run.finish_call(0, ToolResult("2"), LATER)
    assert types(events)[2:] == [
        "output_item.added",
        "code_interpreter_call.in_progress",
        "code_interpreter_call_code.delta",
        "code_interpreter_call_code.done",
        "code_interpreter_call.interpreting",
        "code_interpreter_call.completed",
        "output_item.done",
    ]
    for event in events:
        SDK_EVENT.validate_json(render(RESPONSE, event))
    (item,) = run.output
    assert isinstance(item, CodeInterpreterCall)
    assert (item.code, item.status) == ("1 + 1", "completed")
    assert item.outputs == [{"type": "logs", "logs": "2"}]
    read = items_for_model([item])
    assert isinstance(read[0], FunctionCall)
    assert isinstance(read[1], FunctionCallOutput)
    assert (read[0].name, read[0].arguments, read[1].output) == ("python", '{"code":"1 + 1"}', "2")


@pytest.mark.parametrize(
    ("listed", "name", "argument"),
    [(CODE, "python", "code"), *((WEB, *pair) for pair in (("search", "query"), ("open", "id")))],
)
def test_half_a_character_in_the_arguments_of_a_call_is_told_as_a_question_mark(
    listed: ListedServer, name: str, argument: str
) -> None:
    text = f'{{"{argument}": "a\\ud800b"}}'
    said: list[Delta] = [CallStart(name, namespace=listed.label), CallDelta(text), CallEnd()]
    run, events = play([said], HostedTools([listed]))
    events += run.finish_call(0, ToolResult("2"), LATER)
    assert "a?b" in "".join(event.body for event in events)


@pytest.mark.parametrize("tells_sources", [False, True])
def test_a_search_is_told_with_its_query_and_its_sources_if_these_are_asked_for(tells_sources: bool) -> None:
    said: list[Delta] = [CallStart("search", namespace="browser"), CallDelta('{"query": "cats"}'), CallEnd()]
    run, events = play([said], HostedTools([WEB], include_sources=tells_sources))
    events += run.finish_call(0, ToolResult("Cats: https://cats.example/a."), LATER)
    assert types(events)[2:] == [
        "output_item.added",
        "web_search_call.in_progress",
        "web_search_call.searching",
        "web_search_call.completed",
        "output_item.done",
    ]
    for event in events:
        SDK_EVENT.validate_json(render(RESPONSE, event))
    (item,) = run.output
    assert isinstance(item, WebSearchCall)
    assert item.action["query"] == "cats"
    assert ("sources" in item.action) is tells_sources
    assert [type(read) for read in items_for_model([item])] == [FunctionCall, FunctionCallOutput]


def test_a_failed_call_of_each_form_reads_the_same_after_a_replay() -> None:
    failed = ToolResult(error=McpError("mcp_protocol_error", code=-32000, message="Gone."))
    for listed, name in ((CITY, "find"), (CODE, "python"), (WEB, "search")):
        run, _ = play([call(name, listed.label)], HostedTools([listed]))
        run.finish_call(len(run.output) - 1, failed, LATER)
        again, _ = play([call(name, listed.label)], HostedTools([listed]))
        left = run.output[-1]
        assert isinstance(left, HostedCall)
        assert left.status == "failed"
        again.finish_call(len(again.output) - 1, tool_result_of(left), LATER)
        assert again.output == run.output


def test_a_tool_that_the_request_does_not_offer_is_not_called_at_its_server() -> None:
    run, _ = play([call("find") + call("delete")], HostedTools([CITY]))
    tool_work = run.take_tool_work()
    assert tool_work is not None
    assert [(due.call.name, due.offered) for due in tool_work.calls] == [("find", True), ("delete", False)]


def test_an_output_that_stops_in_the_midst_of_a_call_is_incomplete() -> None:
    half: list[Delta] = [CallStart("find"), CallDelta('{"cmd": "mk')]
    run, _ = play([half], HostedTools())
    assert run.ending is not None
    assert (run.ending.status, run.ending.incomplete_reason) == ("incomplete", "max_output_tokens")
    assert [item.status for item in run.output if isinstance(item, FunctionCall)] == ["incomplete"]
