"""The model that this process serves, and how its output is decoded for a request."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from engine.request import Engine
from engine.vocabulary import Vocabulary
from server.generation.output_decoding import DecodingSpec, WithoutReasoning
from server.generation.token_dump import TokenDump
from server.hosted_tools.tool_specs import hosted_tools_of
from server.input_resolution.mcp_approvals import tagged
from server.limits.long_prompts import LongPromptLimit
from server.model_formats.interface import KeepsMessagesApart, ModelFormat, Parser, Prompt
from server.model_formats.plain_text import PlainParser
from server.prompting.output_options import (
    SEALED_REASONING,
    is_ranked,
    prompt_logprobs,
    stop_strings,
    wants_logprobs,
)
from server.prompting.request_echo import asks_for_summary
from server.protocol.completions.legacy import PlainRequest
from server.protocol.completions.shared_parameters import ChoiceRequest
from server.protocol.responses.items import Item
from server.protocol.responses.request import CreateResponse
from server.sealing.cipher import Seal


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """The model that this process serves."""

    name: str
    engine: Engine
    dialect: ModelFormat
    vocabulary: Vocabulary | None = None
    """What its tokens spell; without it nobody is told of single tokens."""
    seal: Seal = field(default_factory=Seal.of_this_process)
    """What is sealed here can be opened by whoever has its keys."""
    reading_turns: LongPromptLimit = field(default_factory=LongPromptLimit)
    """Whose long prompt is tokenized."""
    most_calls: int | None = None
    """Tool calls that the server makes in one response."""
    summarizes: bool = True
    """Reasoning is its own summary, for requests that ask for one."""
    trusts_templates: bool = False
    """A request may bring the chat template that writes its prompt."""

    @property
    def names(self) -> tuple[str, ...]:
        """What clients may ask for: the model and its adapters."""
        return (self.name, *self.engine.model_info.adapters)

    def reading(
        self, tenant: str, request: CreateResponse, prompt: Prompt, items: Sequence[Item] = ()
    ) -> DecodingSpec:
        """How the tokens of an answer are read. The items may allow calls that come before it."""
        listed = frozenset(request.stop_token_ids or ())
        shown = bool(request.include_stop_str_in_output)
        return DecodingSpec(
            self._parser(request, prompt),
            stops=stop_strings(request),
            tells_stop=shown,
            stop_token_ids=listed,
            silent_stop_ids=frozenset() if shown else listed - prompt.stop_ids,
            tells_stop_reason=isinstance(request, ChoiceRequest),
            ranked=is_ranked(request),
            names_ids=bool(request.return_tokens_as_token_ids),
            vocabulary=self.vocabulary if wants_logprobs(request) else None,
            raw=self._raw_messages(request, prompt),
            tokens_of=prompt.token_ids
            if isinstance(request, ChoiceRequest) and request.tells_tokens
            else None,
            seal=partial(self.seal.seal, "reasoning", tenant)
            if SEALED_REASONING in (request.include or ())
            else None,
            summarizes=self.summarizes and asks_for_summary(request),
            hosted=hosted_tools_of(request, items, partial(tagged, self.seal, tenant), self.most_calls),
        )

    def _parser(self, request: CreateResponse, prompt: Prompt) -> Parser:
        if isinstance(request, PlainRequest) and self.vocabulary is not None:
            shows_special = request.skip_special_tokens is False
            ends = frozenset() if shows_special and request.ignore_eos else prompt.stop_ids
            return PlainParser(self.vocabulary, ends, shows_special=shows_special)
        parser = self.dialect.parser(prompt)
        # A chat completion is a view of a response that has its reasoning.
        hidden = request.include_reasoning is False and not isinstance(request, ChoiceRequest)
        return WithoutReasoning(parser) if hidden else parser

    def _raw_messages(self, request: CreateResponse, prompt: Prompt) -> TokenDump | None:
        if not request.enable_response_messages or self.vocabulary is None:
            return None
        apart = isinstance(self.dialect, KeepsMessagesApart) and not isinstance(request, ChoiceRequest)
        read = self.dialect.messages if apart else None  # type: ignore[attr-defined]
        likelihood = prompt_logprobs(request) is not None
        return TokenDump(self.vocabulary, prompt.token_ids, tells_likelihood=likelihood, read=read)
