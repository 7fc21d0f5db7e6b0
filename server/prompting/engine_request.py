"""`prepare`: a ResolvedRequest as prompt, echo and engine request (Prepared); engine refusals as errors. Its
parameters become the engine's, each checked against the model, and the echo repeats them with defaults.

The same for new, resumed and continued responses. Pure but for the model format, which tokenizes bad words
and knows the tokens around reasoning.
"""

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from engine.grammar.matcher import UNCOMPILED
from engine.request import (
    MAX_BAD_TOKENS,
    MAX_BAD_WORDS,
    Beams,
    EngineRequest,
    ModelInfo,
    RequestRefused,
    SamplingParams,
    ThinkingBudget,
)
from server.errors import ApiError, InvalidRequest, Overloaded, TooManyRequests
from server.generation.output_decoding import CompactionSpec
from server.model_formats.model_format import ModelFormat, Prompt, ReasoningMarks
from server.prompting.prompt_limits import too_long
from server.prompting.served_model import LoadedModel
from server.prompting.structured_outputs import structured_output_grammar
from server.prompting.write_prompt import ResolvedRequest, write_prompt
from server.protocol.completions.requests import ChoiceRequest
from server.protocol.error_object import invalid_value, unsupported_parameter
from server.protocol.responses import tools
from server.protocol.responses.request import (
    COMPLETION_WINDOWS,
    ConversationReference,
    CreateResponse,
    ReasoningOptions,
    TextOptions,
)
from server.protocol.responses.response import ConversationEcho, Echo, ReasoningEcho, TextEcho

SMALLEST_TOP_P = 1e-6
"""Stands for top_p 0, which means the likeliest token alone."""
_MAX_DIGITS = 20
"""Digits of a token id, leading zeros included."""
_MAX_REPORTED = 5
"""Invalid keys that an error names."""
UNLIMITED = -1
"""The value of `thinking_token_budget` for no budget."""
MAX_LOGPROBS = 2**18
"""Log probabilities in one answer, over all its choices; 16 MB of JSON, at some 60 bytes each."""
LOGPROBS = "message.output_text.logprobs"
"""The value of `include` for log probabilities."""
SEALED_REASONING = "reasoning.encrypted_content"
"""The value of `include` for encrypted reasoning, which clients send back and cannot change."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request in the form in which the engine runs it."""

    prompt: Prompt
    echo: Echo
    engine_request: EngineRequest
    prompt_hash: bytes
    """SHA-256 of the prompt's token ids: on recovery it shows a changed template or tokenizer."""
    weights: str | None = None
    """The digest of the weights that generate for it; None if the engine does not know it."""
    wants_output: bool = True
    compaction: CompactionSpec | None = None
    """Set if the response begins with a compaction."""
    next_engine_request: EngineRequest | None = None
    """An estimate of the request that follows a summary turn, for `Engine.check` before acceptance."""

    @property
    def model_writes_summary(self) -> bool:
        """Whether the first turn is the model's summary and the answer is a second turn."""
        return self.compaction is not None and self.compaction.by_model

    def without_output(self) -> "Prepared":
        """A copy limited to prefill: one token is sampled, because the engine has no smaller request."""
        engine_request = replace(
            self.engine_request, max_tokens=1, min_tokens=0, grammar=None, logprobs=None, beams=None
        )
        return replace(self, engine_request=engine_request, wants_output=False)


def engine_request_after(engine_request: EngineRequest, token_ids: Sequence[int]) -> EngineRequest:
    """The engine request that continues `engine_request` after these output tokens."""
    return replace(
        engine_request,
        prompt=(*engine_request.prompt, *token_ids),
        max_tokens=engine_request.max_tokens - len(token_ids),
        output_offset=len(token_ids),
    )


def prepare(served: LoadedModel, resolved: ResolvedRequest) -> Prepared:
    """Writes the prompt and makes the engine request. Raises ApiError."""
    return prepare_from_prompt(served, resolved, write_prompt(served, resolved))


def prepare_from_prompt(served: LoadedModel, resolved: ResolvedRequest, prompt: Prompt) -> Prepared:
    """`prepare` with a prompt that is written already."""
    model = served.model_info
    if resolved.request.enable_response_messages and served.vocabulary is None:
        raise unsupported_parameter(
            "What this model's tokens spell is not known here, so messages cannot be told as tokens.",
            "enable_response_messages",
        )
    echo = request_echo(resolved.request, resolved.tools, model, served.model_format.reasoning_context)
    if prompt.dropped_items:
        echo = msgspec.structs.replace(echo, dropped_items=prompt.dropped_items)
    if len(prompt.token_ids) >= model.context_length:
        raise too_long(model.context_length, tokens=len(prompt.token_ids))
    prepared = Prepared(
        prompt,
        echo,
        _engine_request(served, resolved, prompt, echo),
        prompt_hash=hashlib.sha256(array("i", prompt.token_ids).tobytes()).digest(),
        weights=served.weights.get(echo.model),
    )
    return prepared.without_output() if resolved.request.prewarms else prepared


def _engine_request(
    served: LoadedModel, resolved: ResolvedRequest, prompt: Prompt, echo: Echo
) -> EngineRequest:
    request, tenant, model = resolved.request, resolved.tenant, served.model_info
    room = model.context_length - len(prompt.token_ids)
    # A tokenizer may have end tokens beyond the model's vocabulary.
    stops = frozenset(token for token in prompt.stop_ids if token < model.vocab_size)
    logprobs = request.top_logprobs or 0 if wants_logprobs(request) or is_ranked(request) else None
    named = token_ids(request, "logprob_token_ids", model)
    window = request.completion_window
    return EngineRequest(
        request_id=resolved.response.hex,
        prompt=prompt.token_ids,
        images=prompt.images,
        max_tokens=min(
            echo.max_output_tokens or model.max_new_tokens or room,
            room,
            logprobs_limit(logprobs, named),
        ),
        sampling=sampling_params(model, served.model_format, request, echo, resolved.seed),
        stop_ids=stops,
        stop_token_ids=frozenset(token_ids(request, "stop_token_ids", model)),
        min_tokens=request.min_tokens or 0,
        ignore_eos=bool(request.ignore_eos),
        grammar=prompt.grammar if request.structured_outputs is None else structured_output_grammar(request),
        logprobs=logprobs,
        logprob_token_ids=named,
        thinking_budget=thinking_budget(request, served.model_format, prompt.token_ids),
        prompt_logprobs=prompt_logprobs(request),
        beams=beams(request),
        prediction=prediction(served.model_format, request, model),
        cache_salt=cache_salt(tenant, request),
        fairness_key=tenant if window is None else f"{tenant}\n{window}",
        priority=(request.priority or 0) if window is None else COMPLETION_WINDOWS[window][0],
        adapter=request.model if request.model != served.name else "",
    )


def cache_salt(tenant: str, request: CreateResponse) -> str:
    """The salt of cached prefixes and pictures, which tenants never share."""
    return f"{tenant}\0{request.cache_salt}" if request.cache_salt else tenant


def sampling_params(
    model: ModelInfo, model_format: ModelFormat, request: CreateResponse, echo: Echo, seed: int
) -> SamplingParams:
    """The engine's parameters. Raises InvalidRequest for token ids beyond the vocabulary."""
    return SamplingParams(
        seed=seed,
        temperature=echo.temperature,
        top_p=max(echo.top_p, SMALLEST_TOP_P),
        top_k=max(request.top_k, 0) if request.top_k is not None else model.top_k,
        min_p=request.min_p if request.min_p is not None else model.min_p,
        repetition_penalty=request.repetition_penalty
        if request.repetition_penalty is not None
        else model.repetition_penalty,
        presence_penalty=echo.presence_penalty,
        frequency_penalty=echo.frequency_penalty,
        logit_bias=_logit_bias(request.logit_bias or {}, model),
        allowed_token_ids=tuple(sorted(set(token_ids(request, "allowed_token_ids", model)))),
        bad_words=_bad_words(request.bad_words or (), model_format),
    )


def token_ids(request: CreateResponse, param: str, model: ModelInfo) -> tuple[int, ...]:
    """The token ids in the request's field `param`. Raises InvalidRequest for ids beyond the vocabulary."""
    ids: Sequence[int] = getattr(request, param) or ()
    for index, token_id in enumerate(ids):
        if token_id >= model.vocab_size:
            raise invalid_value(
                f"{token_id} is no token id of the model: its {model.vocab_size} tokens count from 0.",
                f"{param}[{index}]",
            )
    return tuple(ids)


def stop_strings(request: CreateResponse) -> tuple[str, ...]:
    """The request's `stop` as a tuple, without empty strings."""
    texts = [request.stop] if isinstance(request.stop, str) else request.stop or []
    return tuple(text for text in texts if text)


def wants_logprobs(request: CreateResponse) -> bool:
    return bool(request.top_logprobs) or LOGPROBS in (request.include or ())


def prediction(model_format: ModelFormat, request: CreateResponse, model: ModelInfo) -> tuple[int, ...]:
    """The tokens of a chat's predicted output, as many as the context has. Raises ApiError."""
    if not isinstance(request, ChoiceRequest) or not request.prediction:
        return ()
    most = model.context_length * (model_format.max_chars_per_token or 1)
    tokens = model_format.encode(request.prediction[:most], special=False)[: model.context_length]
    return tuple(token for token in tokens if token < model.vocab_size)


def is_ranked(request: CreateResponse) -> bool:
    return isinstance(request, ChoiceRequest) and request.ranked


def prompt_logprobs(request: CreateResponse) -> int | None:
    """The number of likeliest tokens at each position of the prompt; None for no log probabilities."""
    return request.prompt_logprobs if isinstance(request, ChoiceRequest) else None


def beams(request: CreateResponse) -> Beams | None:
    """The beam search and the rank of its output that this choice is; None without beam search."""
    if not isinstance(request, ChoiceRequest) or request.beams is None:
        return None
    return Beams(width=request.beams, rank=request.beam_rank, length_penalty=request.length_penalty)


def logprobs_limit(top_logprobs: int | None, named: Sequence[int] = ()) -> int:
    """The most output tokens of a response with `top_logprobs` (None: no limit) for each.

    `named` are the token ids of `logprob_token_ids`, which are sent in addition.
    """
    return 2**31 if top_logprobs is None else MAX_LOGPROBS // max(1, top_logprobs, len(named))


def thinking_budget(
    request: CreateResponse, model_format: ModelFormat, prompt: Sequence[int]
) -> ThinkingBudget | None:
    """The limit on reasoning tokens. Raises InvalidRequest if the model's reasoning has no end token."""
    limit = request.thinking_token_budget
    if limit is None or limit == UNLIMITED:
        return None
    marks = model_format.reasoning_marks
    if marks is None:
        raise unsupported_parameter(
            "This model does not mark where its reasoning ends with a token of its own, so its length cannot "
            "be limited.",
            "thinking_token_budget",
        )
    spent = _open_reasoning_tokens(prompt, marks)
    return ThinkingBudget(
        tokens=limit, start=marks.start, end=marks.end, open=spent is not None, spent=spent or 0
    )


def _open_reasoning_tokens(prompt: Sequence[int], marks: ReasoningMarks) -> int | None:
    """The length of the reasoning that the prompt's end is inside of; None if it is not inside one."""
    start, end = marks.start, marks.end
    for stop in range(len(prompt), 0, -1):
        if prompt[stop - 1] == end[-1] and tuple(prompt[max(0, stop - len(end)) : stop]) == end:
            return None
        if prompt[stop - 1] == start[-1] and tuple(prompt[max(0, stop - len(start)) : stop]) == start:
            return len(prompt) - stop
    return None


def _logit_bias(biases: dict[str, float], model: ModelInfo) -> tuple[tuple[int, float], ...]:
    """The biases by token id. Raises InvalidRequest for what is no token id of this model."""
    wrong = [token for token in biases if not (token.isascii() and token.isdecimal())]
    if wrong:
        named = ", ".join(repr(word[:50]) for word in wrong[:_MAX_REPORTED])
        raise invalid_value(
            f"logit_bias maps token ids to numbers; these are no token ids: {named}.", "logit_bias"
        )
    for token in biases:
        if len(token) > _MAX_DIGITS or int(token) >= model.vocab_size:
            raise invalid_value(
                f"{token[:50]} is no token id of the model: its {model.vocab_size} tokens count from 0.",
                f"logit_bias.{token[:50]}",
            )
    return tuple(sorted((int(token), bias) for token, bias in biases.items()))


def _bad_words(words: Sequence[str], model_format: ModelFormat) -> tuple[tuple[int, ...], ...]:
    """The token sequences of each word, at the begin of a text and after a space.

    As in vLLM, the second is used only if it has the same length and another first token.
    """
    sequences: dict[tuple[int, ...], None] = {}
    for index, word in enumerate(words):
        bare = word.lstrip()
        plain = model_format.encode(bare, special=False) if bare else ()
        if not plain:
            raise InvalidRequest(
                "A bad word needs a token that is no white space.", param=f"bad_words[{index}]"
            )
        sequences[plain] = None
        spaced = model_format.encode(f" {bare}", special=False)
        if len(spaced) == len(plain) and spaced[0] != plain[0]:
            sequences[spaced] = None
    if len(sequences) > MAX_BAD_WORDS or sum(map(len, sequences)) > MAX_BAD_TOKENS:
        raise invalid_value(
            f"bad_words have more than {MAX_BAD_WORDS} forms, or more than {MAX_BAD_TOKENS} tokens together.",
            "bad_words",
        )
    return tuple(sequences)


def request_echo(
    request: CreateResponse,
    parsed_tools: Sequence[tools.Tool],
    model: ModelInfo,
    reasoning_context: str = "current_turn",
) -> Echo:
    """The parameters in effect. `reasoning_context` is the model's own."""
    return Echo(
        background=bool(request.background),
        conversation=_conversation(request.conversation),
        frequency_penalty=request.frequency_penalty or 0.0,
        instructions=request.instructions,
        max_output_tokens=request.max_output_tokens,
        max_tool_calls=request.max_tool_calls,
        metadata=request.metadata or {},
        model=request.model,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        presence_penalty=request.presence_penalty or 0.0,
        previous_response_id=request.previous_response_id,
        prompt=request.prompt if request.prompt is not None else msgspec.UNSET,
        prompt_cache_key=request.prompt_cache_key,
        reasoning=_reasoning(request.reasoning, reasoning_context),
        safety_identifier=request.safety_identifier,
        service_tier="default",
        store=request.store is not False,
        temperature=request.temperature if request.temperature is not None else model.temperature,
        text=_text(request.text),
        tool_choice=request.tool_choice or "auto",
        tools=[tools.echo(tool) for tool in parsed_tools],
        top_logprobs=request.top_logprobs or 0,
        top_p=request.top_p if request.top_p is not None else model.top_p,
        truncation=request.truncation or "disabled",
        user=request.user,
        ignored_tools=(tools.ignored_types(request.tools) if request.tools else None) or msgspec.UNSET,
    )


def _conversation(reference: str | ConversationReference | None) -> ConversationEcho | msgspec.UnsetType:
    if reference is None:
        return msgspec.UNSET
    return ConversationEcho(reference if isinstance(reference, str) else reference.id)


def asks_for_summary(request: CreateResponse) -> bool:
    """Whether the request wants a summary of the model's reasoning."""
    options = request.reasoning
    return options is not None and (options.summary or options.generate_summary) is not None


def _reasoning(options: ReasoningOptions | None, context: str) -> ReasoningEcho:
    options = options or ReasoningOptions()
    if options.context not in (None, "auto"):
        context = options.context
    return ReasoningEcho(options.effort, options.summary or options.generate_summary, context, "standard")


def _text(text: TextOptions | None) -> TextEcho:
    verbosity = (text and text.verbosity) or "medium"
    if text is None or text.format is None:
        return TextEcho({"type": "text"}, verbosity)
    output_format = text.format
    echo: dict[str, Any] = {"type": output_format.type}
    if output_format.type == "json_schema":
        echo |= {
            "name": output_format.name or "answer",
            "description": output_format.description,
            "schema": output_format.schema,
            "strict": bool(output_format.strict),
        }
    return TextEcho(echo, verbosity)


FORMAT_SCHEMA = "text.format.schema"
_ENGINE = "requests of the engine"
"""The limit that the engine applies, for the log."""


def refusal(refused: RequestRefused, request: CreateResponse) -> ApiError:
    """The error that the client gets."""
    match refused.reason:
        case "overloaded":
            return Overloaded(
                "The server has more requests than it can take; try again later.", limit=_ENGINE
            )
        case "share_full":
            return TooManyRequests(
                "You have as many requests here as one may have; try again later.", limit=_ENGINE
            )
        case "closed":
            return Overloaded("The engine does not take requests at the moment.")
    source = _grammar_source(request) if refused.reason == "bad_grammar" else None
    param, code = source or _REFUSED.get(refused.reason, (None, None))
    sentence = str(refused)
    if param == FORMAT_SCHEMA and request.text and request.text.format:
        name, cause = request.text.format.name or "", sentence.removeprefix(UNCOMPILED)
        sentence = f"Invalid schema for response_format '{name}': {cause}"
    return InvalidRequest(sentence, param=param, code=code)


_REFUSED: dict[str, tuple[str | None, str | None]] = {
    "too_long": ("input", "context_length_exceeded"),
    "bad_image": ("input", "invalid_image"),
    "bad_beams": ("use_beam_search", "unsupported_parameter"),
    "bad_stop": ("stop", None),
    "bad_limit": ("min_tokens", None),  # of the limits, the one that the types do not hold
}


def _grammar_source(request: CreateResponse) -> tuple[str, str]:
    """The parameter that a request's grammar comes from, and the code of an error in it."""
    if request.structured_outputs:
        kind = next(kind for kind, value in request.structured_outputs.items() if value is not None)
        return f"structured_outputs.{kind}", "invalid_value"
    if request.text and request.text.format and request.text.format.type == "json_schema":
        return FORMAT_SCHEMA, "invalid_json_schema"
    return "tools", "invalid_function_parameters"
