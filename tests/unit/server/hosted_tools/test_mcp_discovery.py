"""What is refused of a request that names servers' tools, before any server is asked."""

import logging

import msgspec
import pytest

from server.caller import Caller
from server.hosted_tools.mcp_client import McpServers
from server.hosted_tools.mcp_discovery import discover_tools
from server.hosted_tools.registered_servers import RegisteredServers
from server.protocol.error_object import DecodeFailure
from server.protocol.responses.request import CreateResponse

CALLER = Caller("alice", "k1")


def test_a_wrong_tool_behind_a_served_one_is_named_by_its_place() -> None:
    tools = [{"type": "code_interpreter", "container": {"type": "auto"}}, {"type": "function"}]
    request = msgspec.convert({"model": "m", "input": "x", "tools": tools}, CreateResponse)
    with pytest.raises(DecodeFailure) as refused:
        discover_tools(
            McpServers(RegisteredServers({"python": "http://127.0.0.1:1/mcp"}), 1), CALLER, request, []
        )
    assert refused.value.param == "tools[1].name"


def test_the_log_says_once_which_tools_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    tools = [{"type": "file_search"}, {"type": "function", "name": "f"}]
    request = msgspec.convert({"model": "m", "input": "x", "tools": tools}, CreateResponse)
    with caplog.at_level(logging.INFO):
        discover_tools(McpServers(RegisteredServers(), 1), CALLER, request, [])
    assert caplog.messages == ["a tool of type file_search is left out"]
