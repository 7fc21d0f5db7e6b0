"""Counters of what happens, and that no caller can make them many."""

from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from server.errors import InvalidRequest, Overloaded, TooManyRequests
from server.generation.hosted_tools_of_response import ToolResult
from server.metrics.families import BoundedLabels
from server.metrics.response_counters import MAX_TENANTS, MAX_TOOLS, Events
from server.protocol.responses.items import McpCall, McpError
from server.recording.recorder_messages import RunUpdate

MANY = 10_000


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def events(registry: CollectorRegistry) -> Events:
    return Events(registry, "model", ["files"])


def _value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, labels)


def _call(server: str, tool: str) -> McpCall:
    return McpCall(id="mcp_1", server_label=server, name=tool, arguments="{}", status="completed")


def test_what_was_known_before_the_bound_keeps_its_name() -> None:
    labels = BoundedLabels(2)
    assert [labels.of(value) for value in ("a", "b", "c", "a", "c")] == ["a", "b", "other", "a", "other"]


def test_ten_thousand_methods_tenants_and_tools_have_a_bounded_number_of_series(
    events: Events, registry: CollectorRegistry
) -> None:
    for number in range(MANY):
        events.request("none", f"METHOD{number}", 404, 0.0)
        events.tool_call(_call("files", f"tool{number}"), ToolResult("done"), 0.1)
        events.tool_call(_call(f"server{number}", "tool"), ToolResult("done"), 0.1)
        events.committed([_ended(f"tenant{number}")])
    text = generate_latest(registry).decode()
    tools = [line for line in text.splitlines() if line.startswith("holdfast_tool_call_seconds_count")]
    tokens = [line for line in text.splitlines() if line.startswith("holdfast_tokens_total")]
    assert len(tools) == MAX_TOOLS + 2
    assert len(tokens) == 4 * (MAX_TENANTS + 1)
    assert len(text) < 600_000
    assert _value(registry, "http_requests_total", handler="none", method="other", status="404") == MANY
    others = {"tenant": "other", "model": "model", "kind": "output"}
    assert _value(registry, "holdfast_tokens_total", **others) == 2 * (MANY - MAX_TENANTS)


def test_the_limit_that_was_reached_is_counted_by_whose_it_is(
    events: Events, registry: CollectorRegistry
) -> None:
    events.error(TooManyRequests("Later.", limit="threads"))
    events.error(Overloaded("Later.", limit="threads"))
    events.error(InvalidRequest("No."))
    assert _value(registry, "holdfast_limit_reached_total", limit="threads", of="tenant") == 1
    assert _value(registry, "holdfast_limit_reached_total", limit="threads", of="server") == 1
    assert _value(registry, "holdfast_request_errors_total", code="", status="400") == 1


@pytest.mark.parametrize(
    ("result", "outcome"),
    [
        (ToolResult("done"), "ok"),
        (ToolResult(error=McpError("mcp_tool_execution_error", content=[])), "tool_error"),
        (ToolResult(error=McpError("mcp_protocol_error", message="gone")), "no_answer"),
    ],
)
def test_a_tool_call_is_counted_by_its_outcome(
    events: Events, registry: CollectorRegistry, result: ToolResult, outcome: str
) -> None:
    events.tool_call(_call("files", "read"), result, 0.2)
    labels = {"server": "files", "tool": "read", "outcome": outcome}
    assert _value(registry, "holdfast_tool_call_seconds_sum", **labels) == 0.2


@dataclass
class _Ending:
    status: str = "completed"
    input_tokens: int = 5
    cached_tokens: int = 1
    output_tokens: int = 2
    reasoning_tokens: int = 0


@dataclass
class _Echo:
    background: bool = False
    model: str = "model"


@dataclass
class _Facts:
    tenant: str
    echo: _Echo = field(default_factory=_Echo)


@dataclass
class _Run:
    facts: _Facts
    ending: _Ending = field(default_factory=_Ending)


@dataclass
class _Update:
    run: _Run
    events: list[Any] = field(default_factory=list)


def _ended(tenant: str) -> RunUpdate:
    return cast("RunUpdate", _Update(_Run(_Facts(tenant))))
