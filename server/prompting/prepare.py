"""From a request and its history to a job of the engine: the same at admission and when a run is resumed.

Pure but for the dialect, which reads its model folder once at start.
"""

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from uuid import UUID

from engine.request import Beams, Engine, Job, JobRefused
from engine.vocabulary import Vocabulary
from server.errors import InvalidRequest
from server.generation.output_decoding import Condensing, Reading, WithoutReasoning
from server.generation.token_dump import RawMessages
from server.hosted_tools.tool_specs import hosted_of
from server.input_resolution.mcp_approvals import tagged
from server.limits.long_prompts import ReadingTurns
from server.limits.request_cost import logprobs_limit
from server.limits.tools_and_grammars import (
    COUNTED,
    characters_of,
    refuse_unbounded,
    too_long,
    too_long_to_count,
)
from server.model_formats.interface import (
    Conversation,
    Dialect,
    KeepsMessagesApart,
    OutputFormat,
    Parser,
    Prompt,
    PromptError,
    PromptTooLong,
    Tool,
    ToolChoice,
)
from server.model_formats.plain_text import PlainParser
from server.model_formats.tool_names import without_labels
from server.prompting.engine_refusals import refusal
from server.prompting.request_echo import asks_for_summary, make_echo
from server.prompting.sampling_params import make_sampling, thinking_budget, token_ids
from server.prompting.structured_outputs import given_grammar
from server.prompting.truncation import cut_tokens, write_within
from server.protocol.completions.legacy import PlainRequest
from server.protocol.completions.shared_parameters import ChoiceRequest
from server.protocol.ids import seconds_of
from server.protocol.responses import tools as wire
from server.protocol.responses.items import Item
from server.protocol.responses.request import CreateResponse
from server.protocol.responses.response import Echo
from server.sealing.cipher import Seal
from server.sealing.unseal_items import opened

LOGPROBS = "message.output_text.logprobs"
"""The value of `include` that asks for them."""
SEALED_REASONING = "reasoning.encrypted_content"
"""The value of `include` that asks for reasoning that clients can replay and not change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The model that this process serves."""

    name: str
    engine: Engine
    dialect: Dialect
    vocabulary: Vocabulary | None = None
    """What its tokens spell; without it nobody is told of single tokens."""
    seal: Seal = field(default_factory=Seal.of_this_process)
    """What is sealed here can be opened by whoever has its keys."""
    reading_turns: ReadingTurns = field(default_factory=ReadingTurns)
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
        return (self.name, *self.engine.capabilities.adapters)

    def reading(
        self, tenant: str, request: CreateResponse, prompt: Prompt, items: Sequence[Item] = ()
    ) -> Reading:
        """How the tokens of an answer are read. The items may allow calls that come before it."""
        listed = frozenset(request.stop_token_ids or ())
        shown = bool(request.include_stop_str_in_output)
        return Reading(
            self._parser(request, prompt),
            stops=stop_strings(request),
            tells_stop=shown,
            stop_token_ids=listed,
            silent_stop_ids=frozenset() if shown else listed - prompt.stop_ids,
            tells_stop_reason=isinstance(request, ChoiceRequest),
            ranked=_is_ranked(request),
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
            hosted=hosted_of(request, items, partial(tagged, self.seal, tenant), self.most_calls),
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

    def _raw_messages(self, request: CreateResponse, prompt: Prompt) -> RawMessages | None:
        if not request.enable_response_messages or self.vocabulary is None:
            return None
        apart = isinstance(self.dialect, KeepsMessagesApart) and not isinstance(request, ChoiceRequest)
        read = self.dialect.messages if apart else None  # type: ignore[attr-defined]
        likelihood = prompt_logprobs(request) is not None
        return RawMessages(self.vocabulary, prompt.token_ids, tells_likelihood=likelihood, read=read)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that can be run."""

    prompt: Prompt
    echo: Echo
    job: Job
    generates: bool = True
    condensing: Condensing | None = None
    """There if the response begins with a compaction."""
    next_job: Job | None = None
    """About what follows a compaction that the model writes, to be checked before there is a response."""

    @property
    def sums_up(self) -> bool:
        """The model writes a summary, and answers in a turn of its own."""
        return self.condensing is not None and self.condensing.by_model

    def read_only(self) -> "Prepared":
        """The same without an answer: an engine has read a prompt once it has drawn a token after it."""
        job = replace(
            self.job, max_tokens=1, min_tokens=0, grammar=None, stop_strings=(), logprobs=None, beams=None
        )
        return replace(self, job=job, generates=False)

    @property
    def prompt_hash(self) -> bytes:
        """Tells a changed template or tokenizer from the one that a response began with."""
        return hashlib.sha256(array("i", self.prompt.token_ids).tobytes()).digest()


def job_after(job: Job, token_ids: Sequence[int]) -> Job:
    """The job that goes on behind these tokens as that one would have."""
    return replace(
        job,
        prompt=(*job.prompt, *token_ids),
        max_tokens=job.max_tokens - len(token_ids),
        output_offset=len(token_ids),
    )


def prepare(
    served: Served, tenant: str, request: CreateResponse, items: Sequence[Item], response: UUID, seed: int
) -> Prepared:
    """Raises ApiError or DecodeFailure for what cannot be run; whether the engine has room is not asked."""
    if request.enable_response_messages and served.vocabulary is None:
        raise InvalidRequest(
            "What this model's tokens spell is not known here, so messages cannot be told as tokens.",
            param="enable_response_messages",
            code="unsupported_parameter",
        )
    prompt = write_prompt(served, tenant, request, items, moment_of(response))
    return prepared_with(served, tenant, request, prompt, response, seed)


def moment_of(response: UUID) -> datetime:
    """When a response was asked for, to the second."""
    return datetime.fromtimestamp(seconds_of(response), UTC)


def prepared_with(
    served: Served, tenant: str, request: CreateResponse, prompt: Prompt, response: UUID, seed: int
) -> Prepared:
    """The same from a prompt that is written already."""
    echo = make_echo(request, served.engine.capabilities)
    limit = served.engine.capabilities.context_length
    if len(prompt.token_ids) >= limit:
        raise too_long(limit, tokens=len(prompt.token_ids))
    return Prepared(prompt, echo, _make_job(served, tenant, request, response, seed, prompt, echo))


def write_prompt(
    served: Served,
    tenant: str,
    request: CreateResponse,
    items: Sequence[Item],
    moment: datetime | None = None,
    *,
    room: int | None = None,
) -> Prompt:
    """The prompt of a response that was asked for at that moment.

    With truncation, of as much of the conversation's end as leaves room for an answer. `room` is how many
    tokens are counted, in place of as many as the model can read. Raises ApiError or DecodeFailure for what
    cannot be written, or has more tokens.
    """
    context = served.engine.capabilities.context_length
    given = given_grammar(request)
    readable = opened(items, served.seal, tenant)
    conversation = _conversation(request, readable, moment)
    refuse_unbounded(conversation, given)
    if isinstance(request, PlainRequest):
        stops = served.engine.capabilities.stop_ids
        return Prompt(token_ids=request.token_ids, stop_ids=stops, grammar=given)
    limit, truncates = context - 1 if room is None else room, request.truncation == "auto"
    if request.truncate_prompt_tokens is not None and not truncates:
        limit = max(limit, COUNTED * context)
    try:
        with served.reading_turns.hold(tenant, characters_of(conversation)):
            prompt = write_within(served.dialect, conversation, limit, truncates=truncates)
        most, side = request.truncate_prompt_tokens, request.truncation_side
        kept = cut_tokens(prompt.token_ids, most, side, context=context, asked=request.max_output_tokens)
        return replace(prompt, token_ids=kept)
    except PromptError as error:
        raise InvalidRequest(str(error), param=error.param) from error
    except PromptTooLong as error:
        raise (too_long(context) if room is None else too_long_to_count(error.limit)) from error


def _conversation(request: CreateResponse, items: Sequence[Item], moment: datetime | None) -> Conversation:
    given = wire.read_tools(request.tools)
    choice = wire.read_choice(request.tool_choice, given)
    text = request.text
    return Conversation(
        items=items,
        instructions=request.instructions,
        tools=without_labels([tool for declared in given for tool in _tools(declared)]),
        choice=ToolChoice(
            mode=choice.mode, allowed=choice.allowed, parallel=request.parallel_tool_calls is not False
        ),
        format=_format(request),
        effort=request.reasoning.effort if request.reasoning else None,
        verbosity=text.verbosity if text else None,
        template=request.chat_template,
        variables=request.chat_template_kwargs or {},
        documents=request.documents or (),
        moment=moment,
        continues=bool(request.continue_final_message),
        adds_special_tokens=isinstance(request, ChoiceRequest) and request.add_special_tokens,
        generates=request.add_generation_prompt is not False and not request.continue_final_message,
    )


def _tools(declared: wire.Tool, namespace: str | None = None) -> list[Tool]:
    match declared:
        case wire.NamespaceTool(name, inner):
            return [tool for one in inner for tool in _tools(one, name)]
        case wire.McpTool(label):
            return [
                Tool(
                    name=listed.name,
                    description=listed.description,
                    parameters=listed.input_schema,
                    namespace=label,
                    builtin=label in ("python", "browser"),
                    served=True,
                    prefixed=not declared.plain_names,
                )
                for listed in declared.offered
            ]
        case wire.CustomTool(name, description, wire.GrammarFormat(syntax, definition)):
            return [
                Tool(
                    name=name,
                    description=description,
                    kind="custom",
                    syntax=syntax,
                    definition=definition,
                    namespace=namespace,
                )
            ]
        case wire.CustomTool(name, description):
            return [Tool(name=name, description=description, kind="custom", namespace=namespace)]
        case wire.FunctionTool(name, description, parameters, strict):
            return [
                Tool(
                    name=name,
                    description=description,
                    parameters=parameters,
                    strict=bool(strict),
                    namespace=namespace,
                )
            ]


def _format(request: CreateResponse) -> OutputFormat:
    asked = request.text.format if request.text else None
    if asked is None:
        return OutputFormat()
    if asked.type == "json_schema" and asked.schema is None:
        raise InvalidRequest("A json_schema format needs a schema.", param="text.format.schema")
    return OutputFormat(
        kind=asked.type,
        schema=asked.schema,
        name=asked.name or "",
        description=asked.description,
        strict=bool(asked.strict),
    )


def _make_job(
    served: Served,
    tenant: str,
    request: CreateResponse,
    response: UUID,
    seed: int,
    prompt: Prompt,
    echo: Echo,
) -> Job:
    model = served.engine.capabilities
    room = model.context_length - len(prompt.token_ids)
    # A tokenizer may have end tokens that the model has no logit for.
    stops = frozenset(token for token in prompt.stop_ids if token < model.vocab_size)
    logprobs = request.top_logprobs or 0 if wants_logprobs(request) or _is_ranked(request) else None
    named = token_ids(request, "logprob_token_ids", model)
    return Job(
        job_id=response.hex,
        prompt=prompt.token_ids,
        max_tokens=min(
            echo.max_output_tokens or model.max_new_tokens or room,
            room,
            logprobs_limit(logprobs, named),
        ),
        sampling=make_sampling(model, served.dialect, request, echo, seed),
        stop_ids=stops,
        stop_token_ids=frozenset(token_ids(request, "stop_token_ids", model)),
        stop_strings=stop_strings(request),
        min_tokens=request.min_tokens or 0,
        ignore_eos=bool(request.ignore_eos),
        grammar=given_grammar(request) or prompt.grammar,
        logprobs=logprobs,
        logprob_token_ids=named,
        thinking_budget=thinking_budget(request, served.dialect, prompt.token_ids),
        prompt_logprobs=prompt_logprobs(request),
        beams=beams(request),
        cache_salt=f"{tenant}\0{request.cache_salt}" if request.cache_salt else tenant,
        share=tenant,
        priority=request.priority or 0,
        adapter=request.model if request.model != served.name else "",
    )


def stop_strings(request: CreateResponse) -> tuple[str, ...]:
    """Where the answer is cut, in the request's words."""
    given = [request.stop] if isinstance(request.stop, str) else request.stop or []
    return tuple(text for text in given if text)


def wants_logprobs(request: CreateResponse) -> bool:
    return bool(request.top_logprobs) or LOGPROBS in (request.include or ())


def _is_ranked(request: CreateResponse) -> bool:
    return isinstance(request, ChoiceRequest) and request.ranked


def check(engine: Engine, prepared: Prepared, request: CreateResponse) -> None:
    """Raises ApiError for what the engine could not run."""
    try:
        for job in (prepared.job, prepared.next_job):
            if job is not None:
                engine.check(job)
    except JobRefused as refused:
        raise refusal(refused, request) from refused


def prompt_logprobs(request: CreateResponse) -> int | None:
    """Of how many of the likeliest tokens at each place of the prompt is to be told, if at all."""
    return request.prompt_logprobs if isinstance(request, ChoiceRequest) else None


def beams(request: CreateResponse) -> Beams | None:
    """Which output of which search is asked for, if one is."""
    if not isinstance(request, ChoiceRequest) or request.beams is None:
        return None
    return Beams(width=request.beams, rank=request.beam_rank, length_penalty=request.length_penalty)
