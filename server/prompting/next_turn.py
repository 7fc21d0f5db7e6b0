"""The turns of one response after its first: the same request, with what was said and called since."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

import msgspec

from engine.request import EngineRequest
from server.generation.output_decoding import DecodingSpec
from server.hosted_tools.tool_specs import McpCredentials, call_limit
from server.prompting.engine_request import prepare
from server.prompting.loaded_model import LoadedModel
from server.protocol.responses.hosted_items import ServedCall
from server.protocol.responses.items import Item, encode_item
from server.protocol.responses.request import CreateResponse
from server.protocol.responses.tools import McpTool, read_choice, read_tools

MAX_OUTPUT_BYTES = 8 * 1024 * 1024
"""Of a response's output, results of tools included; beyond it there is no further turn."""


@dataclass(frozen=True, slots=True)
class NextTurn:
    """What a turn is generated from, and how its tokens are read."""

    engine_request: EngineRequest
    decoding_spec: DecodingSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnBuilder:
    """What the turns of a response have in common."""

    served: LoadedModel
    tenant: str
    request: CreateResponse
    items: Sequence[Item]
    """What the model read before its first turn."""
    response: UUID
    seed: int
    credentials: Mapping[str, McpCredentials] = field(default_factory=dict)
    """By server: the caller's, which is not stored with the request."""
    model_writes_summary: bool = False
    """The first turn is that of a compaction."""

    def credentials_for(self, label: str) -> McpCredentials:
        """The caller's, or after a take-over what is left of it."""
        if label in self.credentials:
            return self.credentials[label]
        declared = [tool for tool in read_tools(self.request.tools) if isinstance(tool, McpTool)]
        return McpCredentials(next((tool.server_url for tool in declared if tool.name == label), None))

    @property
    def may_have_next_turn(self) -> bool:
        """There may be more than the first: behind a compaction, or calls that the server makes."""
        return self.model_writes_summary or any(
            isinstance(tool, McpTool) for tool in read_tools(self.request.tools)
        )

    def next_turn(self, output: Sequence[Item], turn: int, spent: int) -> NextTurn | None:
        """The turn behind that output; None if no token or no room is left for it. Raises ApiError.

        No call is forced a second time, or there would be no end; and none is offered once the request's
        limit is used up.
        """
        most = self.request.max_output_tokens
        if most is not None and spent >= most:
            return None
        if sum(len(encode_item(item)) for item in output) >= MAX_OUTPUT_BYTES:
            return None
        request = msgspec.structs.replace(
            self.request,
            max_output_tokens=None if most is None else most - spent,
            tool_choice=self._tool_choice(output),
        )
        items = [*self.items, *output]
        prepared = prepare(self.served, self.tenant, request, items, self.response, self.seed)
        engine_request = replace(prepared.engine_request, request_id=f"{self.response.hex}.{turn + 1}")
        return NextTurn(engine_request, self.served.decoding_spec(self.tenant, request, prepared.prompt))

    def _tool_choice(self, output: Sequence[Item]) -> str | dict[str, object] | None:
        most = call_limit(self.request, self.served.max_tool_calls)
        if most is not None and sum(isinstance(item, ServedCall) for item in output) >= most:
            return "none"
        given = self.request.tool_choice
        if not any(isinstance(item, ServedCall) for item in output):
            return given
        forced = read_choice(given, read_tools(self.request.tools)).mode == "required"
        if not forced:
            return given
        if isinstance(given, dict) and given.get("type") == "allowed_tools":
            return {**given, "mode": "auto"}
        return "auto"
