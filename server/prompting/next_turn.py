"""The engine request of a response's next turn: the same request with the output and tool results so far."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

import msgspec

from engine.request import EngineRequest
from server.generation.output_decoding import DecodingSpec
from server.hosted_tools.offered_tools import McpCredentials, call_limit
from server.prompting.engine_request import prepare
from server.prompting.loaded_model import LoadedModel
from server.prompting.resolved_request import ResolvedRequest
from server.protocol.responses.items import HostedCall, Item, encode_item
from server.protocol.responses.tools import McpTool, read_choice

MAX_OUTPUT_BYTES = 8 * 1024 * 1024
"""Of a response's output as JSON, tool results included; beyond it there is no further turn."""


@dataclass(frozen=True, slots=True)
class NextTurn:
    """A turn's engine request, and how its tokens are decoded."""

    engine_request: EngineRequest
    decoding_spec: DecodingSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnBuilder:
    """Makes the turns of one response after its first."""

    served: LoadedModel
    resolved: ResolvedRequest
    credentials: Mapping[str, McpCredentials] = field(default_factory=dict)
    """The caller's, by server label. They are not stored with the request."""
    model_writes_summary: bool = False
    """Whether the first turn is a compaction's summary."""

    @property
    def response(self) -> UUID:
        return self.resolved.response

    def credentials_for(self, label: str) -> McpCredentials:
        """The caller's credentials; after a recovery the server's URL alone."""
        if label in self.credentials:
            return self.credentials[label]
        servers = (tool for tool in self.resolved.tools if isinstance(tool, McpTool))
        return McpCredentials(next((tool.server_url for tool in servers if tool.name == label), None))

    @property
    def may_have_next_turn(self) -> bool:
        """Whether a turn may follow the first: after a summary, or after calls that the server makes."""
        return self.model_writes_summary or any(isinstance(tool, McpTool) for tool in self.resolved.tools)

    def next_turn(self, output: Sequence[Item], turn: int, output_tokens: int) -> NextTurn | None:
        """The turn after turn number `turn`; None if no output tokens or bytes are left. Raises ApiError.

        `output_tokens` is the number that the response has used. A required call is required once only,
        because a model that must call a tool in each turn never answers. No tool is offered after the
        request's limit of calls.
        """
        request = self.resolved.request
        limit = request.max_output_tokens
        if limit is not None and output_tokens >= limit:
            return None
        if sum(len(encode_item(item)) for item in output) >= MAX_OUTPUT_BYTES:
            return None
        resolved = replace(
            self.resolved,
            request=msgspec.structs.replace(
                request,
                max_output_tokens=None if limit is None else limit - output_tokens,
                tool_choice=self._tool_choice(output),
            ),
            items=[*self.resolved.items, *output],
        )
        prepared = prepare(self.served, resolved)
        engine_request = replace(prepared.engine_request, request_id=f"{resolved.response.hex}.{turn + 1}")
        return NextTurn(engine_request, self.served.decoding_spec(resolved, prepared.prompt))

    def _tool_choice(self, output: Sequence[Item]) -> str | dict[str, object] | None:
        request = self.resolved.request
        limit = call_limit(request, self.served.max_tool_calls)
        calls = sum(isinstance(item, HostedCall) for item in output)
        if limit is not None and calls >= limit:
            return "none"
        choice = request.tool_choice
        if not calls or read_choice(choice, list(self.resolved.tools)).mode != "required":
            return choice
        if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
            return {**choice, "mode": "auto"}
        return "auto"
