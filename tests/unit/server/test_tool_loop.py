"""What the tool loop does for a response that ends while its next turn is prepared."""

from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

from server.hosted_tools.mcp_client import McpServers
from server.hosted_tools.registered_servers import RegisteredServers
from server.recording.messages import ReleaseRuns
from server.tool_loop import ToolLoop


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
    loop._begin_turn(turns, cast("Any", SimpleNamespace(output=(), turn=1, output_tokens=0)))
    assert (loop._engine_requests, submitted, delivered) == ({}, [], [])
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
    loop.begin(run, cast("Any", SimpleNamespace(calls=())))
    assert delivered == [ReleaseRuns(frozenset({response}))]
    loop.close()
