"""`Events`: counters and histograms that change when something happens: requests, ends of responses, tools.

Nothing is observed for each token. Label values that callers choose are bounded.
"""

from collections.abc import Sequence
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Histogram

from server.errors import ApiError
from server.generation.hosted_tools_of_response import ToolResult
from server.metrics.families import OTHER, BoundedLabels
from server.metrics.refused_requests import RefusedRequests
from server.protocol.responses.items import McpCall
from server.recording.recorder_messages import RunUpdate

MAX_TENANTS = 100
MAX_TOOLS = 200
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
REQUEST_BOUNDS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0)
TOOL_BOUNDS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0)
CHOICE_BOUNDS = (1, 2, 5, 10, 20)
"""vLLM's bounds of `n`."""


class Events:
    """Any thread."""

    def __init__(self, registry: CollectorRegistry, model: str, tool_servers: Sequence[str] = ()) -> None:
        """`model` is the served model's name, `tool_servers` the labels of registered MCP servers."""
        self.refused = RefusedRequests()
        self._tenants = BoundedLabels(MAX_TENANTS)
        self._tools = BoundedLabels(MAX_TOOLS)
        self._tool_servers = frozenset(tool_servers)
        counter, histogram = partial(Counter, registry=registry), partial(Histogram, registry=registry)
        says, route = "HTTP requests answered, by route, method and status.", ("handler", "method")
        self._requests = counter("http_requests", says, (*route, "status"))
        says = "Seconds from a request's head to the end of its answer, streams included."
        name = "http_request_duration_seconds"
        self._request_seconds = histogram(name, says, route, buckets=REQUEST_BOUNDS)
        says = "Error objects sent, over HTTP and WebSockets, by code and status."
        self._errors = counter("holdfast_request_errors", says, ("code", "status"))
        says = "Requests refused at a limit; `of` is whose limit it is, tenant or server."
        self._limits = counter("holdfast_limit_reached", says, ("limit", "of"))
        says, of_engine = "Answers that a request asks for.", ("model_name", "engine")
        choices = histogram("vllm:request_params_n", says, of_engine, buckets=CHOICE_BOUNDS)
        self.accepted = choices.labels(model, "0").observe
        """Is called with how many answers an accepted request asks for."""
        says = "Responses whose end is committed, by status."
        self._ended = counter("holdfast_responses_ended", says, ("status", "background"))
        for status in ("completed", "incomplete", "failed", "cancelled"):
            for background in ("false", "true"):
                self._ended.labels(status, background)
        self._events = counter("holdfast_events", "Stream events committed.")
        says = "Tokens of ended responses; cached_input is a part of input, reasoning of output."
        self._tokens = counter("holdfast_tokens", says, ("tenant", "model", "kind"))
        says = "Seconds of tool calls that the server made, by outcome: ok, tool_error or no_answer."
        labels = ("server", "tool", "outcome")
        self._tool_seconds = histogram("holdfast_tool_call_seconds", says, labels, buckets=TOOL_BOUNDS)

    def request(self, handler: str, method: str, status: int, seconds: float | None) -> None:
        """An HTTP request was answered. `handler` is its route's template; `seconds` None for a WebSocket."""
        known = method if method in METHODS else OTHER
        self._requests.labels(handler, known, str(status)).inc()
        if seconds is not None:
            self._request_seconds.labels(handler, known).observe(seconds)

    def error(self, error: ApiError) -> None:
        """An error object was sent in answer to the current request."""
        self.refused.count(error)
        self._errors.labels(error.code or "", str(error.status)).inc()
        if error.limit is not None:
            self._limits.labels(error.limit, "tenant" if error.status == 429 else "server").inc()

    def committed(self, updates: Sequence[RunUpdate]) -> None:
        """A commit wrote these updates. The recorder's thread."""
        self._events.inc(sum(len(update.events) for update in updates))
        for update in updates:
            if update.run.ending is not None:
                self._count_end(update)

    def _count_end(self, update: RunUpdate) -> None:
        facts, ending = update.run.facts, update.run.ending
        assert ending is not None
        self._ended.labels(ending.status, str(facts.echo.background).lower()).inc()
        tenant, model = self._tenants.of(facts.tenant), facts.echo.model
        for kind, count in (
            ("input", ending.input_tokens),
            ("cached_input", ending.cached_tokens),
            ("output", ending.output_tokens),
            ("reasoning", ending.reasoning_tokens),
        ):
            self._tokens.labels(tenant, model, kind).inc(count)

    def tool_call(self, call: McpCall, outcome: ToolResult, seconds: float) -> None:
        """A tool call ended. Calls of servers that a request names by URL have no names of their own."""
        registered = call.server_label in self._tool_servers
        server = call.server_label if registered else OTHER
        tool = self._tools.of(f"{server} {call.name}") if registered else OTHER
        result = "ok" if outcome.error is None else "no_answer"
        if outcome.error is not None and outcome.error.type == "mcp_tool_execution_error":
            result = "tool_error"
        self._tool_seconds.labels(server, tool.removeprefix(f"{server} "), result).observe(seconds)
