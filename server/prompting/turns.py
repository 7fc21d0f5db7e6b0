"""A response's turns: the first one (`first_turn`), how each one's tokens are decoded, the ones after it.

A later turn's request is the first one's with the output and the tool results so far (`TurnBuilder`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from uuid import UUID

import msgspec

from engine.request import EngineRequest
from server.generation.hosted_tools_of_response import (
    HostedTools,
    McpCredentials,
    PendingToolWork,
    call_limit,
    hosted_tools_of,
)
from server.generation.output_decoding import DecodingSpec, no_decoding
from server.generation.token_dump import TokenDump
from server.model_formats.chat_template.chat_output_parser import PlainParser
from server.model_formats.model_format import MessageFormat, OutputParser, Prompt
from server.prompting.context_management import prepare_later_turn, prepare_with_compaction
from server.prompting.engine_request import (
    SEALED_REASONING,
    Prepared,
    asks_for_summary,
    is_ranked,
    prepare,
    prompt_logprobs,
    stop_strings,
    wants_logprobs,
)
from server.prompting.prompt_limits import MAX_COUNTED_CONTEXTS
from server.prompting.served_model import LoadedModel
from server.prompting.write_prompt import ResolvedRequest, write_prompt
from server.protocol.completions.requests import ChoiceRequest, PlainRequest
from server.protocol.responses.items import Compaction, HostedCall, Item, ToolSearchCall, encode_item
from server.protocol.responses.request import CreateResponse
from server.protocol.responses.tools import McpTool, ToolSearchTool, read_choice
from server.sealing.sealed_items import with_tagged_id

MAX_OUTPUT_BYTES = 8 * 1024 * 1024
"""Bytes of a response's output as JSON, tool results included; beyond them there is no further turn."""


def first_turn(
    served: LoadedModel,
    resolved: ResolvedRequest,
    credentials: Mapping[str, McpCredentials] = MappingProxyType({}),
    *,
    generate: bool = True,
) -> "tuple[Prepared, TurnBuilder]":
    """The first turn of a new or a resumed response, and the builder of those after it.

    It is the summary's if the context is compacted. `credentials` are the caller's, by the label of a server.
    With `generate` false the response completes without output when its prompt is prefilled. Raises ApiError
    or InvalidRequest.
    """
    if not generate:
        prepared = prepare(served, resolved).without_output()
    elif resolved.request.context_management:
        prepared = prepare_with_compaction(served, resolved, resolved.request.context_management)
    else:
        prepared = prepare(served, resolved)
    has_hosted_tools = any(
        isinstance(tool, McpTool) or (isinstance(tool, ToolSearchTool) and tool.execution == "server")
        for tool in resolved.tools
    )
    return prepared, TurnBuilder(
        served=served,
        resolved=resolved,
        credentials=credentials,
        has_hosted_tools=has_hosted_tools,
        may_have_next_turn=has_hosted_tools or prepared.model_writes_summary,
    )


def count_prompt(served: LoadedModel, resolved: ResolvedRequest) -> int:
    """The tokens of a request's prompt, at most MAX_COUNTED_CONTEXTS times the model's context.

    Raises ApiError, also for a longer one.
    """
    limit = MAX_COUNTED_CONTEXTS * served.model_info.context_length
    return len(write_prompt(served, resolved, max_tokens=limit).token_ids)


def first_decoding_spec(served: LoadedModel, resolved: ResolvedRequest, prepared: Prepared) -> DecodingSpec:
    """The decoding of a response's first turn: of an answer, or of a summary.

    Calls that the input approves are made before an answer.
    """
    return _decoding_spec(served, resolved, prepared, resolved.items if prepared.wants_output else ())


def _decoding_spec(
    served: LoadedModel, resolved: ResolvedRequest, prepared: Prepared, approving_items: Sequence[Item] = ()
) -> DecodingSpec:
    """The decoding of one turn's tokens. Calls that `approving_items` allow are made before it.

    A summary is no output, so the request's stop strings and log probabilities do not apply to it.
    """
    request, tenant, prompt = resolved.request, resolved.tenant, prepared.prompt
    listed = frozenset(request.stop_token_ids or ())
    shown = bool(request.include_stop_str_in_output)
    spec = DecodingSpec(
        _parser(served, request, prompt),
        # A chat completion's response keeps its reasoning; the chat format leaves it out.
        hides_reasoning=request.include_reasoning is False and not isinstance(request, ChoiceRequest),
        stop_strings=(*stop_strings(request), *prompt.stop_strings),
        include_stop_string=shown,
        min_tokens=request.min_tokens or 0,
        must_call=prompt.must_call,
        stop_token_ids=listed,
        hidden_stop_ids=frozenset() if shown else listed - prompt.stop_ids,
        reports_stop_reason=isinstance(request, ChoiceRequest),
        reports_cumulative_logprob=is_ranked(request),
        prediction=prepared.engine_request.prediction,
        tokens_as_ids=bool(request.return_tokens_as_token_ids),
        vocabulary=served.vocabulary if wants_logprobs(request) else None,
        token_dump=_token_dump(served, request, prompt),
        streamed_prompt_ids=prompt.token_ids
        if isinstance(request, ChoiceRequest) and request.streams_token_ids
        else None,
        seal=partial(served.seal.seal, "reasoning", tenant)
        if SEALED_REASONING in (request.include or ())
        else None,
        summarizes_reasoning=served.summarizes_reasoning and asks_for_summary(request),
        hosted=hosted_tools_of(
            request,
            resolved.tools,
            approving_items,
            partial(with_tagged_id, served.seal, tenant),
            served.max_tool_calls,
        )
        if resolved.tools
        else HostedTools(),
        compaction=prepared.compaction,
        dropped_items=prompt.dropped_items,
    )
    if not prepared.model_writes_summary:
        return spec
    none: frozenset[int] = frozenset()
    return replace(spec, stop_strings=(), stop_token_ids=none, hidden_stop_ids=none, vocabulary=None)


def _parser(served: LoadedModel, request: CreateResponse, prompt: Prompt) -> OutputParser:
    if isinstance(request, PlainRequest) and served.vocabulary is not None:
        shows_special = request.skip_special_tokens is False
        ends = frozenset() if shows_special and request.ignore_eos else prompt.stop_ids
        return PlainParser(served.vocabulary, ends, shows_special=shows_special)
    return served.model_format.parser(prompt)


def _token_dump(served: LoadedModel, request: CreateResponse, prompt: Prompt) -> TokenDump | None:
    if not request.enable_response_messages or served.vocabulary is None:
        return None
    read = None
    if isinstance(served.model_format, MessageFormat) and not isinstance(request, ChoiceRequest):
        read = served.model_format.messages
    likelihood = prompt_logprobs(request) is not None
    return TokenDump(served.vocabulary, prompt.token_ids, prompt_logprobs=likelihood, read=read)


@dataclass(frozen=True, slots=True)
class NextTurn:
    """A turn's engine request, and how its tokens are decoded."""

    engine_request: EngineRequest | None
    """None for a compaction whose transcript is its own summary: another turn follows at once."""
    decoding_spec: DecodingSpec

    @property
    def prompt_tokens(self) -> int:
        return 0 if self.engine_request is None else len(self.engine_request.prompt)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnBuilder:
    """Makes the turns of one response after its first."""

    served: LoadedModel
    resolved: ResolvedRequest
    credentials: Mapping[str, McpCredentials] = field(default_factory=dict)
    """The caller's, by server label. They are not stored with the request."""
    has_hosted_tools: bool = False
    """Whether the model may call tools that the server runs."""
    may_have_next_turn: bool = False
    """Whether a turn may follow the first: after a summary, or after calls that the server makes."""

    @property
    def response(self) -> UUID:
        return self.resolved.response

    def credentials_for(self, label: str) -> McpCredentials:
        """The caller's credentials; after a recovery the server's URL alone."""
        if label in self.credentials:
            return self.credentials[label]
        for tool in self.resolved.tools:
            if isinstance(tool, McpTool) and tool.name == label:
                return McpCredentials(tool.server_url, session=tool.container)
        return McpCredentials()

    def next_turn(self, work: PendingToolWork) -> NextTurn | None:
        """The turn after the one that has ended; None if no output tokens or bytes are left. Raises ApiError.

        A required call is required once only, because a model that must call a tool in each turn never
        answers. No tool is offered after the request's limit of calls.
        """
        request, output, output_tokens = self.resolved.request, work.output, work.output_tokens
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
            dropped_items=0 if isinstance(output[-1], Compaction) else work.dropped_items,
        )
        prepared = prepare_later_turn(self.served, resolved)
        if prepared.compaction is not None and not prepared.compaction.by_model:
            return NextTurn(None, replace(no_decoding(), compaction=prepared.compaction))
        engine_request = replace(
            prepared.engine_request, request_id=f"{resolved.response.hex}.{work.turn + 1}"
        )
        return NextTurn(engine_request, _decoding_spec(self.served, resolved, prepared))

    def _tool_choice(self, output: Sequence[Item]) -> str | dict[str, object] | None:
        request = self.resolved.request
        limit = call_limit(request, self.served.max_tool_calls)
        calls = [item for item in output if isinstance(item, HostedCall)]
        if limit is not None and len(calls) >= limit:
            return "none"
        choice = request.tool_choice
        if all(isinstance(call, ToolSearchCall) for call in calls):
            return choice  # the tool that must be called was only looked for
        if read_choice(choice, list(self.resolved.tools)).mode != "required":
            return choice
        if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
            return {**choice, "mode": "auto"}
        return "auto"
