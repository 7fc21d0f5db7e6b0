"""`LoadedModel`: the model that this process serves, and how its output is decoded for a request."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from engine.request import Engine
from engine.vocabulary import Vocabulary
from server.generation.output_decoding import DecodingSpec, WithoutReasoning
from server.generation.response_builder import TokenDump
from server.hosted_tools.offered_tools import hosted_tools_of
from server.input_resolution.mcp_approvals import with_tagged_id
from server.limits.long_prompts import LongPromptLimit
from server.model_formats.chat_template.output_parser import PlainParser
from server.model_formats.interface import MessageFormat, ModelFormat, OutputParser, Prompt
from server.prompting.output_options import (
    SEALED_REASONING,
    is_ranked,
    prompt_logprobs,
    stop_strings,
    wants_logprobs,
)
from server.prompting.request_echo import asks_for_summary
from server.prompting.resolved_request import ResolvedRequest
from server.protocol.completions.requests import ChoiceRequest, PlainRequest
from server.protocol.responses.items import Item
from server.protocol.responses.request import CreateResponse
from server.sealing.cipher import Seal


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """The model that this process serves."""

    name: str
    engine: Engine
    model_format: ModelFormat
    vocabulary: Vocabulary | None = None
    """The text of its tokens; without it no log probabilities or token dumps are sent."""
    seal: Seal = field(default_factory=Seal.of_this_process)
    """Seals the content that clients keep for the server."""
    long_prompts: LongPromptLimit = field(default_factory=LongPromptLimit)
    """Bounds the long prompts that are tokenized at a time."""
    max_tool_calls: int | None = None
    """The most tool calls that the server makes in one response; None for no limit."""
    summarizes_reasoning: bool = True
    """Whether requests for a reasoning summary get the reasoning itself as one."""
    trusts_templates: bool = False
    """Whether a request may bring its own chat template."""

    @property
    def names(self) -> tuple[str, ...]:
        """The values of `model` that requests may have: the model and its adapters."""
        return (self.name, *self.engine.model_info.adapters)

    def decoding_spec(
        self, resolved: ResolvedRequest, prompt: Prompt, approving_items: Sequence[Item] = ()
    ) -> DecodingSpec:
        """How the tokens of one turn become output. Calls that `approving_items` allow are made before it."""
        request, tenant = resolved.request, resolved.tenant
        listed = frozenset(request.stop_token_ids or ())
        shown = bool(request.include_stop_str_in_output)
        return DecodingSpec(
            self._parser(request, prompt),
            stop_strings=stop_strings(request),
            include_stop_string=shown,
            stop_token_ids=listed,
            hidden_stop_ids=frozenset() if shown else listed - prompt.stop_ids,
            reports_stop_reason=isinstance(request, ChoiceRequest),
            reports_cumulative_logprob=is_ranked(request),
            tokens_as_ids=bool(request.return_tokens_as_token_ids),
            vocabulary=self.vocabulary if wants_logprobs(request) else None,
            token_dump=self._raw_messages(request, prompt),
            streamed_prompt_ids=prompt.token_ids
            if isinstance(request, ChoiceRequest) and request.streams_token_ids
            else None,
            seal=partial(self.seal.seal, "reasoning", tenant)
            if SEALED_REASONING in (request.include or ())
            else None,
            summarizes_reasoning=self.summarizes_reasoning and asks_for_summary(request),
            hosted=hosted_tools_of(
                request,
                resolved.tools,
                approving_items,
                partial(with_tagged_id, self.seal, tenant),
                self.max_tool_calls,
            ),
        )

    def _parser(self, request: CreateResponse, prompt: Prompt) -> OutputParser:
        if isinstance(request, PlainRequest) and self.vocabulary is not None:
            shows_special = request.skip_special_tokens is False
            ends = frozenset() if shows_special and request.ignore_eos else prompt.stop_ids
            return PlainParser(self.vocabulary, ends, shows_special=shows_special)
        parser = self.model_format.parser(prompt)
        # A chat completion's response keeps its reasoning; the chat format leaves it out.
        hidden = request.include_reasoning is False and not isinstance(request, ChoiceRequest)
        return WithoutReasoning(parser) if hidden else parser

    def _raw_messages(self, request: CreateResponse, prompt: Prompt) -> TokenDump | None:
        if not request.enable_response_messages or self.vocabulary is None:
            return None
        apart = isinstance(self.model_format, MessageFormat) and not isinstance(request, ChoiceRequest)
        read = self.model_format.messages if apart else None  # type: ignore[attr-defined]
        likelihood = prompt_logprobs(request) is not None
        return TokenDump(self.vocabulary, prompt.token_ids, prompt_logprobs=likelihood, read=read)
