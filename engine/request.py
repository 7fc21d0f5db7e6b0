"""The engine's interface: requests, sampling parameters, output messages, the `Engine` protocol.

`EngineRequest` and `Cancel` go to the engine thread; `Tokens`, `PromptLogprobs`, `Finished` and `Failed` come
back, in one list per engine step. All of these are plain data (no tensors, no callables), so the engine can
move to its own process. Prompts and outputs are token ids, not text.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from engine.stats_snapshot import NOT_MEASURED, RequestTimes, Stats

log = logging.getLogger(__name__)

FinishReason = Literal["stop", "length", "cancelled"]
"""`stop`: a stop token came, or `Cancel` with this reason; `length`: the limit; `cancelled`: `Cancel`."""

CancelReason = Literal["cancelled", "stop"]
"""`stop`: the caller has found the end of the output."""

FailureCode = Literal["out_of_memory", "engine_error", "engine_dead", "overloaded"]

MAX_BIAS = 100.0
MAX_BIASES = 1024
MAX_MARK_TOKENS = 512
"""The longest sequence of tokens that begins or ends reasoning."""
MAX_LOGPROBS = 20
MAX_BEAMS = MAX_LOGPROBS // 2
"""A step of beam search reads the logprobs of 2 * width tokens for each beam."""
MAX_STOP_TOKENS = 128
MAX_LOGPROB_TOKENS = 128
MAX_ALLOWED_TOKENS = 16_384
MAX_BAD_TOKENS = 4096
"""Tokens of all bad words of a request together."""
MAX_BAD_WORDS = 256
MAX_IMAGES = 128
MAX_IMAGE_BYTES = 64 * 2**20
"""Bytes of all pictures of a request together."""
MAX_IMAGE_PIXELS = 2**24
"""Width times height of one picture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Random numbers come from a counter-based generator keyed by (`seed`, position), which counts prompt and
    output tokens together. So a request that continues another one's output has the same random numbers.
    """

    seed: int
    temperature: float = 1.0
    """0 is greedy; otherwise the logits are divided by it. At least 0."""
    top_p: float = 1.0
    """Sample from the smallest set of tokens whose probability reaches this. In (0, 1]."""
    top_k: int = 0
    """Sample from the k likeliest tokens; 0 is no limit."""
    min_p: float = 0.0
    """Sample from tokens with at least this fraction of the likeliest token's probability. 0 to 1."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of each token that the output contains. -2 to 2."""
    frequency_penalty: float = 0.0
    """Subtracted from the logit of a token, times its count in the output. -2 to 2."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in prompt or output. 0.01 to 100."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(id, bias) pairs, added to logits: at most `MAX_BIASES` pairs, ids ascending, biases -100 to 100."""
    allowed_token_ids: tuple[int, ...] = ()
    """Only these ids are sampled, stop ids included; empty is no limit. At most `MAX_ALLOWED_TOKENS`."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token sequences that the output must not contain: the last token of one is masked where the output ends
    with the tokens before it. At most `MAX_BAD_WORDS` with `MAX_BAD_TOKENS` tokens in all."""


StructuredOutputKind = Literal[
    "json_schema", "json_object", "regex", "lark", "structural_tags", "structural_form"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutput:
    """The grammar of a request's output. `engine.grammar.structured_output_to_lark` says what `text` is."""

    kind: StructuredOutputKind
    text: str = ""
    """The schema as JSON, the pattern, the Lark grammar, or the tags as JSON; empty for `json_object`."""
    relaxed: "StructuredOutput | None" = None
    """The fallback if this grammar cannot be compiled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingBudget:
    """Limits reasoning: after `tokens` reasoning tokens, the `end` sequence is forced, token by token."""

    tokens: int
    """Reasoning tokens in the whole output, `start` and `end` not counted. At least 0."""
    start: tuple[int, ...]
    """The sequence that begins reasoning; at least one token."""
    end: tuple[int, ...]
    """The sequence that ends reasoning; at least one token."""
    open: bool = False
    """The prompt ends inside reasoning."""
    spent: int = 0
    """Reasoning tokens at the end of the prompt, where `open` is set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beams:
    """The output is a result of beam search (`engine.front.beam_search`)."""

    width: int
    """Beams that are continued in each step, and number of results. 1 to `MAX_BEAMS`."""
    rank: int = 0
    """Which result this request returns: 0 is the best. Below `width`."""
    length_penalty: float = 1.0
    """-10 to 10; above 1 prefers longer outputs."""


@dataclass(frozen=True, slots=True)
class ImageText:
    text: str
    """The text that replaces `ModelInfo.image_placeholder` in the prompt."""
    tokens: int
    """How many times `ModelInfo.image_token_id` is among the tokens of `text`; at least 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptImage:
    """`Engine.image_text` says how many of its tokens are `image_token_id`."""

    data: bytes = field(repr=False)
    """A PNG, JPEG, WebP or GIF file of at most `MAX_IMAGE_PIXELS`; of a GIF, the first frame."""
    digest: bytes
    start: int
    """Index in the prompt of the picture's first `image_token_id`."""
    length: int
    """Tokens from there to its last `image_token_id`, row breaks and other tokens between them included."""

    @property
    def end(self) -> int:
        return self.start + self.length


IDLE_PRIORITY = 2**31 - 16
"""The lowest of the priorities that wait until nothing else is to be computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    request_id: str
    prompt: tuple[int, ...]
    max_tokens: int
    """A stop token included. At least 1."""
    sampling: SamplingParams
    stop_ids: frozenset[int] = frozenset()
    """Generation ends with the first of these; it is delivered as the last token."""
    stop_token_ids: frozenset[int] = frozenset()
    """Further end tokens, with `ignore_eos` too; ordinary ones to a grammar. At most `MAX_STOP_TOKENS`."""
    adapter: str = ""
    """Of `ModelInfo.adapters`; empty is the base model."""
    cache_salt: str = ""
    """Requests share cached prefixes only with requests of the same salt and adapter."""
    priority: int = 0
    """Lower values run first, and preempt requests of higher values if KV memory is short. Requests from
    `IDLE_PRIORITY` on are computed in steps that have no other request."""
    fairness_key: str = ""
    """Among requests of one priority, the waiting key with the fewest served tokens is next."""
    min_tokens: int = 0
    """Until the output has this many tokens, stop ids are masked."""
    ignore_eos: bool = False
    """`stop_ids` are ordinary tokens; `stop_token_ids` still end generation."""
    logprobs: int | None = None
    """Return each token's logprob and those of this many top tokens; at most `MAX_LOGPROBS`."""
    logprob_token_ids: tuple[int, ...] = ()
    """With `logprobs`: return these ids instead of the top tokens; at most `MAX_LOGPROB_TOKENS`."""
    prompt_logprobs: int | None = None
    """Return logprobs of the prompt, without earlier output, too; takes nothing from the prefix cache."""
    grammar: StructuredOutput | None = None
    """Only tokens that the grammar allows are sampled, and stop ids exactly where it may end. It takes
    precedence over `min_tokens`, `ignore_eos`, biases, bad words and the thinking budget. It starts with the
    output, earlier output included."""
    thinking_budget: ThinkingBudget | None = None
    images: tuple[PromptImage, ...] = ()
    """In the order of the prompt, without overlap; at most `MAX_IMAGES` of together `MAX_IMAGE_BYTES`."""
    beams: Beams | None = None
    """Tokens are delivered at the end, all at once. Beams are scored by the model's own logprobs, so sampling
    parameters, grammars and stop strings do not apply; `min_tokens` and stop ids do."""
    prediction: tuple[int, ...] = ()
    """The caller's guess of the output, as a source of drafts; it changes no token."""
    output_offset: int = 0
    """This many of the prompt's last tokens are earlier output of the same request. Penalties and
    `min_tokens` count them as output, so an interrupted request continues unchanged."""

    @property
    def ends(self) -> frozenset[int]:
        """The tokens that end the request, if it has no grammar."""
        return self.stop_token_ids | (frozenset() if self.ignore_eos else self.stop_ids)


@dataclass(frozen=True, slots=True)
class CheckedRequest:
    """From `Engine.check`: the request can run."""

    request: EngineRequest
    grammar: Any = None
    """A `CompiledGrammar` of `engine.grammar.compiler`."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Ends a request with `Finished` within one step; an unknown or ended request is ignored."""

    request_id: str
    reason: CancelReason = "cancelled"


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Logprobs (natural logarithm) of the raw logits: before biases, penalties, masks and temperature."""

    chosen: float
    top: tuple[tuple[int, float], ...] = ()
    """(id, logprob) of the top tokens, likeliest first, ties by id; or of `logprob_token_ids` in order."""


class Tokens(NamedTuple):
    """The tokens that one step generated for one request, in order. A tuple, because there are so many."""

    request_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None = None
    """One entry a token; None if the request has no `logprobs`."""


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Logprobs of consecutive prompt tokens; all come, in order, before the request's first `Tokens`."""

    request_id: str
    begin: int
    """Index in the prompt of the first entry; at least 1, because the first token has no logprob."""
    logprobs: tuple[TokenLogprobs, ...]


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Token counts of one request. `cached` is the part of `prompt` that the prefix cache had."""

    prompt: int = 0
    cached: int = 0
    output: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    """The last message of a request that ended without an error."""

    request_id: str
    reason: FinishReason
    usage: TokenUsage
    times: RequestTimes = field(default=NOT_MEASURED, compare=False)


@dataclass(frozen=True, slots=True)
class Failed:
    """The last message of a request that ended with an error. `message` is for the log, not for clients."""

    request_id: str
    code: FailureCode
    message: str
    usage: TokenUsage = field(default_factory=TokenUsage)
    times: RequestTimes = field(default=NOT_MEASURED, compare=False)


Outbound = Tokens | PromptLogprobs | Finished | Failed


Deliver = Callable[[Sequence[Outbound]], None]
"""Called once a step on the engine thread, and at last by the watchdog if that hangs; must not block."""
OnEngineDeath = Callable[[str], None]
"""Called once, on an engine thread, with the reason, after its final death and all `Failed`; must not block.
The owner should end the process, to be restarted. A first death is only counted in `Stats.deaths`."""

RefusalReason = Literal[
    "bad_token", "bad_limit", "bad_sampling", "bad_stop", "bad_beams", "bad_grammar", "bad_adapter",
    "bad_image", "too_long", "duplicate", "overloaded", "share_full", "closed",
]  # fmt: skip


class RequestRefused(Exception):
    """The request was not accepted. `reason` is machine-readable, `str()` is a sentence for the caller."""

    def __init__(self, reason: RefusalReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def one_line(text: str, limit: int = 300) -> str:
    """The text without line breaks, cut to `limit` characters, for messages of failures and refusals."""
    return " ".join(text.split())[:limit]


def describe(error: BaseException, limit: int = 300) -> str:
    """Type and message of the error, as `one_line`."""
    return one_line(f"{type(error).__name__}: {error}", limit)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Properties of the loaded model that a caller needs to build a valid `EngineRequest`."""

    vocab_size: int
    context_length: int
    stop_ids: frozenset[int]
    """The end-of-sequence ids of generation_config."""
    temperature: float
    top_p: float
    """`temperature` and `top_p` are defaults of generation_config; 0 and 1 if it sets do_sample=False."""
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    """These three are defaults of generation_config, the first two 0 if it sets do_sample=False."""
    max_new_tokens: int | None = None
    """Default output limit of generation_config; None is the rest of the context."""
    adapters: tuple[str, ...] = ()
    weights: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Digests of the weights by adapter, "" for none, equal in all processes; those missing are not known."""
    image_placeholder: str | None = None
    image_token_id: int | None = None
    """The text that chat templates write for a picture, and the token in place of which the model takes a row
    of one; None if the model reads text only."""
    grammar_token_ids: frozenset[int] = frozenset()
    """Tokens that are not special, but that a grammar must name by id, as if they were."""
    attention: str = ""
    """The attention backend: `sdpa` (torch's own) or the name of a kernel."""
    decode: str = ""
    """How decode steps run: `eager`, `graphs` (CUDA graphs), or `static` (the same without graphs)."""

    @classmethod
    def of_folder(
        cls, vocab_size: int, context_length: int, config: Mapping[str, Any], defaults: Mapping[str, Any]
    ) -> "ModelInfo":
        """By config.json and generation_config.json; values of other types count as missing.

        End tokens beyond the vocabulary, as fine-tunes have that add tokens to the tokenizer only, are left
        out: they cannot be sampled, and would index past the logits.
        """
        eos = defaults.get("eos_token_id", config.get("eos_token_id"))
        eos_ids = {eos_id for eos_id in (eos if isinstance(eos, list) else [eos]) if is_count(eos_id)}
        beyond = sorted(eos_id for eos_id in eos_ids if eos_id >= vocab_size)
        for eos_id in beyond:
            log.warning("the end token %d is left out: the vocabulary has %d tokens", eos_id, vocab_size)
        max_new_tokens = defaults.get("max_new_tokens")
        sampled = defaults if defaults.get("do_sample") else {"temperature": 0.0}
        return cls(
            vocab_size=vocab_size,
            context_length=context_length,
            stop_ids=frozenset(eos_ids.difference(beyond)),
            temperature=_number(sampled, "temperature", 1.0),
            top_p=_number(sampled, "top_p", 1.0),
            top_k=int(_number(sampled, "top_k", 0)),
            min_p=_number(sampled, "min_p", 0.0),
            repetition_penalty=_number(defaults, "repetition_penalty", 1.0),
            max_new_tokens=max_new_tokens if is_count(max_new_tokens) and max_new_tokens else None,
        )


def _number(values: Mapping[str, Any], key: str, default: float) -> float:
    value = values.get(key)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else default


def is_count(value: Any) -> bool:
    """Whether a value of JSON is a whole number of at least 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


class Engine(Protocol):
    """The engine's public methods. Each accepted request ends in exactly one `Finished` or `Failed`."""

    @property
    def model_info(self) -> ModelInfo: ...

    def check(self, request: EngineRequest) -> CheckedRequest:
        """The request for `submit`. Raises `RequestRefused` if it could never run. Any thread.

        Reads pictures as `image_text` does, unless they were read with the same `cache_salt` lately.
        """

    def image_text(self, data: bytes, cache_salt: str = "") -> ImageText:
        """The text that stands for this picture in a prompt. Takes up to 1 s; any thread.

        Raises `RequestRefused` (`bad_image`) if the model reads no pictures or cannot read this one.
        """

    def submit(self, request: EngineRequest | CheckedRequest) -> None:
        """Queues the request, which is checked first if it was not. Raises `RequestRefused`. Any thread."""

    def cancel(self, request_id: str, reason: CancelReason = "cancelled") -> None:
        """Ends the request; `stop`: its output is complete. Unknown ids are ignored. Any thread."""

    def set_paused(self, paused: bool) -> None:
        """Pauses or resumes stepping, for back-pressure: while paused no step begins.

        Requests are accepted and cancelled meanwhile. Idempotent; any thread.
        """

    def stats(self) -> Stats: ...

    def close(self, *, drain: bool) -> None:
        """Ends the engine thread, after the requests (`drain`) or after cancelling them. Idempotent."""
