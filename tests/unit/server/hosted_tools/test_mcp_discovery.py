"""What is refused of a request that names servers' tools, before any server is asked."""

from typing import Any

import msgspec
import pytest

from server.caller import Caller
from server.errors import InvalidRequest, NotReady, ToolNotAllowed
from server.hosted_tools.mcp_client import McpServers
from server.hosted_tools.mcp_discovery import discover_tools
from server.hosted_tools.registered_servers import RegisteredServers
from server.outbound_http.allowed_addresses import read_allowed
from server.protocol.responses.request import CreateResponse
from server.protocol.responses.tools import ignored_types

CALLER = Caller("alice", "k1")


def test_a_wrong_tool_behind_a_served_one_is_named_by_its_place() -> None:
    tools = [{"type": "code_interpreter", "container": {"type": "auto"}}, {"type": "function"}]
    request = msgspec.convert({"model": "m", "input": "x", "tools": tools}, CreateResponse)
    with pytest.raises(InvalidRequest) as refused:
        discover_tools(
            McpServers(RegisteredServers({"python": "http://127.0.0.1:1/mcp"}), 1), CALLER, request, []
        )
    assert refused.value.param == "tools[1].name"


CODE = {"type": "code_interpreter", "container": {"type": "auto"}}
SEARCH = {"type": "web_search_preview"}
REGISTERED = {"type": "mcp", "server_label": "files"}
OWN = {"type": "mcp", "server_label": "files2", "server_url": "http://127.0.0.1:9/mcp?token=x"}


def is_allowed(tool: dict[str, Any], *allowed: str) -> bool:
    """Whether a key with these tools may use the tool; its server is not asked, or does not answer."""
    locations = dict.fromkeys(("python", "browser", "files"), "http://127.0.0.1:1/mcp")
    servers = McpServers(RegisteredServers(locations), 1, read_allowed("http://127.0.0.1:9"))
    request = msgspec.convert({"model": "m", "input": "x", "tools": [tool]}, CreateResponse)
    caller = Caller("alice", "k1", tools=frozenset(allowed))
    try:
        discover_tools(servers, caller, request, [])
    except NotReady:
        return True
    except ToolNotAllowed:
        return False
    raise AssertionError


CONTAINER: dict[str, Any] = {"type": "auto", "memory_limit": "4g", "file_ids": [], "network_policy": None}
LIMITED = {"type": "allowlist", "allowed_domains": ["a.example"]}


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"type": "web_search", "filters": {"allowed_domains": ["a.example"]}}, "filters.allowed_domains"),
        ({**CODE, "container": {**CONTAINER, "file_ids": ["file_1"]}}, "container.file_ids"),
        ({**CODE, "container": {**CONTAINER, "network_policy": LIMITED}}, "container.network_policy"),
    ],
)
def test_a_restriction_that_a_served_tool_would_not_obey_is_refused_by_its_path(
    tool: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        is_allowed(tool, "code_interpreter", "web_search")
    assert (refused.value.param, refused.value.code) == (f"tools[0].{param}", "unsupported_parameter")


def test_a_container_that_nobody_made_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no container 'cntr_1'") as refused:
        is_allowed({**CODE, "container": "cntr_1"}, "code_interpreter")
    assert (refused.value.param, refused.value.code) == ("tools[0].container", "invalid_value")


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "web_search", "filters": {"allowed_domains": None}, "external_web_access": True},
        {"type": "web_search", "search_context_size": "low", "user_location": {"type": "approximate"}},
        {**SEARCH, "search_content_types": ["text"]},
        {**CODE, "container": CONTAINER},
        {**CODE, "container": "auto"},
    ],
)
def test_a_setting_that_tunes_a_served_tool_is_accepted(tool: dict[str, Any]) -> None:
    assert is_allowed(tool, "code_interpreter", "web_search")


def test_a_search_without_access_to_the_web_is_left_out_and_said_to_be() -> None:
    servers = McpServers(RegisteredServers({"browser": "http://127.0.0.1:1/mcp"}), 1)
    tools: list[dict[str, Any]] = [{"type": "web_search", "external_web_access": False}]
    request = msgspec.convert({"model": "m", "input": "x", "tools": tools}, CreateResponse)
    assert discover_tools(servers, CALLER, request, []) == (request, [], {})
    assert ignored_types(tools) == ["web_search"]


@pytest.mark.parametrize(
    ("tool", "names"),
    [
        (CODE, ("code_interpreter", "python")),
        (SEARCH, ("web_search", "web_search_preview", "browser")),
        (REGISTERED, ("files",)),
        (OWN, ("127.0.0.1", "http://127.0.0.1:9/mcp", "http://127.0.0.1:9/mcp?token=x")),
    ],
)
def test_a_key_uses_the_tools_that_it_names_and_no_others(
    tool: dict[str, Any], names: tuple[str, ...]
) -> None:
    for name in names:
        assert is_allowed(tool, name)
        assert is_allowed(tool, "other", name)
    assert not is_allowed(tool, "other")
    assert not is_allowed(tool, "files2")  # a label that the request chooses
    others = {"code_interpreter", "web_search", "files", "127.0.0.1"}.difference(names)
    assert not is_allowed(tool, *others)
