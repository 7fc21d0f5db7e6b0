"""What the tool loop does for a response that ends while its next turn is prepared."""

from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from server.errors import Overloaded
from server.generation.run import RunFacts
from server.hosted_tools.mcp_client import McpServers
from server.hosted_tools.registered_servers import RegisteredServers
from server.hosted_tools.tool_loop import ToolLoop
from server.recording.recorder_messages import SERVER_ERROR, FailRun, ReleaseRuns, StartTurn
from tests.support.builders import make_facts


def test_a_response_that_ends_while_its_next_turn_is_prepared_leaves_nothing_behind() -> None:
    submitted: list[object] = []
    delivered: list[object] = []
    engine = SimpleNamespace(submit=submitted.append, cancel=lambda _request: None)
    loop = ToolLoop(cast("Any", engine), McpServers(RegisteredServers(), 1), delivered.extend)
    response = uuid4()

    def next_turn(*_: object) -> object:
        loop.unregister(response)
        return SimpleNamespace(
            engine_request=SimpleNamespace(request_id=f"{response.hex}.1", prompt=()), decoding_spec=None
        )

    turns: Any = SimpleNamespace(response=response, next_turn=next_turn)
    loop.register(turns)
    loop._begin_turn(
        make_facts(id=response), turns, cast("Any", SimpleNamespace(output=(), turn=1, output_tokens=0))
    )
    assert (loop._engine_requests, submitted, delivered) == ({}, [], [])
    loop.close()


def test_a_response_ends_as_cut_where_a_budget_has_no_room_for_its_next_turn() -> None:
    submitted: list[object] = []
    delivered: list[object] = []
    asked: list[tuple[UUID, int]] = []

    def reserve_turn(facts: RunFacts, prompt_tokens: int) -> bool:
        asked.append((facts.id, prompt_tokens))
        return False

    engine = SimpleNamespace(submit=submitted.append, cancel=lambda _request: None)
    servers = McpServers(RegisteredServers(), 1)
    loop = ToolLoop(cast("Any", engine), servers, delivered.extend, reserve_turn=reserve_turn)
    response = uuid4()
    turn = SimpleNamespace(engine_request=SimpleNamespace(request_id="1", prompt=(1, 2, 3)))
    turns: Any = SimpleNamespace(response=response, next_turn=lambda *_: turn)
    loop.register(turns)
    work: Any = SimpleNamespace(output=(), turn=1, output_tokens=0)
    loop._begin_turn(make_facts(id=response), turns, work)
    assert (asked, submitted, delivered) == ([(response, 3)], [], [StartTurn(response, None, 0)])
    loop.close()


def test_a_background_response_is_released_where_its_next_turn_would_begin_once_turns_are_held() -> None:
    delivered: list[object] = []
    engine = SimpleNamespace(submit=None, cancel=lambda _request: None)
    loop = ToolLoop(cast("Any", engine), McpServers(RegisteredServers(), 1), delivered.extend)
    response = uuid4()
    request = SimpleNamespace(background=True)
    turns: Any = SimpleNamespace(response=response, resolved=SimpleNamespace(request=request))
    loop.register(turns)
    loop.hold_background_turns()
    run: Any = SimpleNamespace(facts=SimpleNamespace(id=response))
    loop.begin(run, cast("Any", SimpleNamespace(calls=(), output=())))
    assert delivered == [ReleaseRuns(frozenset({response}))]
    loop.close()


@pytest.mark.parametrize("background", [True, False])
def test_where_there_is_no_room_to_write_a_prompt_a_background_response_is_released(
    *, background: bool
) -> None:
    delivered: list[object] = []
    engine = SimpleNamespace(submit=None, cancel=lambda _request: None)
    loop = ToolLoop(cast("Any", engine), McpServers(RegisteredServers(), 1), delivered.extend)
    response = uuid4()

    def next_turn(*_: object) -> object:
        raise Overloaded("Full.", limit="long prompts")

    resolved = SimpleNamespace(request=SimpleNamespace(background=background))
    turns: Any = SimpleNamespace(response=response, next_turn=next_turn, resolved=resolved)
    work = cast("Any", SimpleNamespace(output=(), turn=1, output_tokens=0))
    loop._begin_turn(make_facts(id=response), turns, work)
    released = ReleaseRuns(frozenset({response}))
    assert delivered == [released if background else FailRun(response, SERVER_ERROR, "Full.")]
    loop.close()
