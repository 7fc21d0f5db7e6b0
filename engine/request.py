"""Everything that crosses the engine thread's border, and nothing else.

Inwards go `EngineRequest` and `Cancel`; outwards come `Tokens`, `PromptLogprobs`, `Finished` and
`Failed`, handed over in one list per engine step. All of it is plain data (no tensor, no callable), so
that the engine can be moved to a process of its own. Token ids only: this file knows nothing of text,
HTTP, items or tenants.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

FinishReason = Literal["stop", "length", "cancelled"]
"""`stop`: a stop token or a stop string came; `length`: the limit was reached; `cancelled`: `Cancel` was
received."""

FailureCode = Literal["out_of_memory", "engine_error", "engine_dead", "overloaded", "deadline"]
"""`deadline`: the request's time is over. A failure, as OpenAI's API has no incomplete response that ran out
of time; what the request gave until then is delivered, and its usage told."""

MAX_BIASES = 1024
MAX_STOP_STRINGS = 32
MAX_STOP_BYTES = 512
"""Of one stop string, in UTF-8: what is looked for in every step of a request is small."""
MAX_LOGPROBS = 20
MAX_BEAMS = MAX_LOGPROBS // 2
"""Each step looks at twice as many tokens."""
MAX_STOP_TOKENS = 128
MAX_LOGPROB_TOKENS = 128
MAX_ALLOWED_TOKENS = 16_384
MAX_BAD_TOKENS = 4096
"""Of all bad words of a request together; and no more of them than `MAX_BAD_WORDS`."""
MAX_BAD_WORDS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is drawn.

    Randomness comes from a counter-based generator keyed by (`seed`, position), where the position counts
    prompt and output tokens together. A request whose prompt is another request's prompt plus its first
    outputs therefore continues with the draws that the other request would have made.
    """

    seed: int
    temperature: float = 1.0
    """0 is greedy; otherwise the logits are divided by it. At least 0."""
    top_p: float = 1.0
    """Draw from the smallest set of tokens whose probability reaches this. In (0, 1]."""
    top_k: int = 0
    """Draw from the k likeliest tokens; 0 is no limit."""
    min_p: float = 0.0
    """Draw from the tokens that are at least this likely, relative to the likeliest. 0 to 1."""
    presence_penalty: float = 0.0
    """Taken off the logit of each token that the output has. -2 to 2."""
    frequency_penalty: float = 0.0
    """Taken off the logit of a token once for each time that the output has it. -2 to 2."""
    repetition_penalty: float = 1.0
    """Divides the logit of each token that prompt or output has; multiplies a negative one. 0.01 to 100."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Added to the logits of these ids: at most `MAX_BIASES` pairs, ids rising, biases -100 to 100."""
    allowed_token_ids: tuple[int, ...] = ()
    """Only these are drawn, stop ids no more than others; none is no limit. At most `MAX_ALLOWED_TOKENS`."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Sequences of tokens that the output must not have: the last token of one is not drawn where the output
    ends with the tokens before it. At most `MAX_BAD_WORDS` with `MAX_BAD_TOKENS` tokens in all."""


StructuredOutputKind = Literal[
    "json_schema", "json_object", "regex", "lark", "structural_tags", "structural_form"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutput:
    """The grammar of a request's output. `engine.grammar.lark_source` says what `text` may be."""

    kind: StructuredOutputKind
    text: str = ""
    """The schema as JSON, the pattern, the Lark grammar, or the tags as JSON; nothing for `json_object`."""
    relaxed: "StructuredOutput | None" = None
    """What is followed in its place if it cannot be compiled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingBudget:
    """After so many tokens of reasoning its end is forced, token by token."""

    tokens: int
    """Of the whole output, the marks not counted. At least 0."""
    start: tuple[int, ...]
    """The tokens that begin the reasoning; at least one."""
    end: tuple[int, ...]
    """The tokens that end it; at least one."""
    open: bool = False
    """The prompt ends within the reasoning."""
    spent: int = 0
    """Tokens of reasoning that the prompt ends with, where it is `open`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beams:
    """The output is one of the likeliest that a beam search finds (`engine.sampling.beam_search`)."""

    width: int
    """Beams that go on at a time, and outputs that are found. 1 to `MAX_BEAMS`."""
    rank: int = 0
    """Which of them the request gives: 0 is the best. Below `width`."""
    length_penalty: float = 1.0
    """-10 to 10; above 1, longer outputs are preferred."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """What the engine is given: token ids and limits."""

    request_id: str
    prompt: tuple[int, ...]
    max_tokens: int
    """The most tokens to generate, a stop token included. At least 1."""
    sampling: SamplingParams
    stop_ids: frozenset[int] = frozenset()
    """Generation ends with the first of these; it is delivered as the last token."""
    stop_token_ids: frozenset[int] = frozenset()
    """More tokens that generation ends with, whatever `ignore_eos` says; a grammar takes them for tokens like
    others. At most `MAX_STOP_TOKENS`."""
    adapter: str = ""
    """Compute with this one of `ModelInfo.adapters`; with none, the base model."""
    cache_salt: str = ""
    """Requests share cached prefixes only with requests of the same salt and adapter."""
    priority: int = 0
    """Lower runs earlier, and takes the memory of higher ones where there is too little."""
    share: str = ""
    """Key of the fair queue: among requests of one priority, the share with the fewest tokens is next."""
    deadline_seconds: float | None = None
    """From `submit` on, waiting included; then the request ends with `Failed("deadline")`. Above 0."""
    min_tokens: int = 0
    """Output tokens, before which no stop id is drawn and no stop string ends the request."""
    ignore_eos: bool = False
    """Stop ids are tokens like others; `stop_token_ids` are not."""
    stop_strings: tuple[str, ...] = ()
    """Generation ends when the bytes of the output tokens have one of these, across tokens too. The token
    that completes it is delivered. At most `MAX_STOP_STRINGS` of at most `MAX_STOP_BYTES`."""
    logprobs: int | None = None
    """Tell of each token how likely it was, and of so many of the likeliest; at most `MAX_LOGPROBS`."""
    logprob_token_ids: tuple[int, ...] = ()
    """With `logprobs`, tell of these tokens in place of the likeliest; at most `MAX_LOGPROB_TOKENS`."""
    prompt_logprobs: int | None = None
    """As `logprobs`, of the prompt but for earlier output, in `PromptLogprobs`. It is computed whole: such a
    request takes nothing from the prefix cache."""
    grammar: StructuredOutput | None = None
    """Only tokens that it allows are drawn, and stop ids exactly where it may end: it comes before
    `min_tokens`, `ignore_eos`, biases and bad words, and a thinking budget yields to it. It begins with the
    output, earlier output included."""
    thinking_budget: ThinkingBudget | None = None
    beams: Beams | None = None
    """Tokens come when the search is over, all at once. It goes by the model's own log probabilities, so no
    other way of choosing tokens, no grammar and no stop string goes with it; `min_tokens` and stop ids do."""
    output_offset: int = 0
    """So many of the prompt's last tokens are earlier output of the same request. Penalties, `min_tokens` and
    stop strings count them as output, so that a request which was cut goes on as it would have."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Ends a request with `Finished("cancelled")` within one step; an unknown or ended request is ignored."""

    request_id: str


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """How likely a token was to the model itself: before biases, penalties, masks and temperature."""

    chosen: float
    """Of the token itself: the natural logarithm of its probability."""
    top: tuple[tuple[int, float], ...] = ()
    """The likeliest ids with theirs, likeliest first, ties by id; as many as asked for. Or the
    ids that the request named, in its order."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens that one step gave one request, in order."""

    request_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None = None
    """One for each token, if the request asked for them."""


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Logprobs of a stretch of a request's prompt; all of them come, in order, before the first `Tokens`."""

    request_id: str
    begin: int
    """The place of the first token told of. The prompt's first token has no logprob: it starts at 1."""
    logprobs: tuple[TokenLogprobs, ...]


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request. `cached` of the `prompt` tokens were taken from the prefix cache."""

    prompt: int = 0
    cached: int = 0
    output: int = 0


@dataclass(frozen=True, slots=True)
class StopMatch:
    """Which stop string ended a request, and where it lies in the output's last tokens.

    The text to show is that of the tokens before these, and the first `before` bytes of these.
    """

    text: str
    tokens: int
    """So many of the last tokens hold bytes of it. With an `output_offset` some may be earlier output."""
    before: int
    """Bytes of these tokens before it begins, all in the first of them."""
    after: int
    """Bytes of these tokens after it ends, all in the last of them."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The request ended as it should. Its last message."""

    request_id: str
    reason: FinishReason
    usage: Usage
    stop_hit: StopMatch | None = None
    """Where the reason is a stop string."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The request could not be finished. Its last message. `message` is for the log, not for clients."""

    request_id: str
    code: FailureCode
    message: str
    usage: Usage = field(default_factory=Usage)


Outbound = Tokens | PromptLogprobs | Finished | Failed


class Deliver(Protocol):
    """Called on the engine thread once per step with that step's messages; must not block.

    When that thread hangs in a step, the thread that watches it makes the one call that tells all requests;
    there are never two calls at a time.
    """

    def __call__(self, messages: Sequence[Outbound], /) -> None: ...


class OnEngineDeath(Protocol):
    """Called once, on a thread of the engine, when it has died for good; must not block.

    Every request was told before. What serves the engine should end the process, so that it starts anew.
    A first death, of which it recovers by itself, is only counted in `Stats.deaths`; `alive` is False
    meanwhile.
    """

    def __call__(self, why: str, /) -> None: ...


class RequestRefused(Exception):
    """The request can never run as it stands; nothing was queued.

    `reason` is machine-readable, `str()` is a sentence for the caller.
    """

    def __init__(
        self,
        reason: Literal[
            "bad_token",
            "bad_limit",
            "bad_sampling",
            "bad_stop",
            "bad_beams",
            "bad_grammar",
            "bad_adapter",
            "too_long",
            "duplicate",
            "overloaded",
            "share_full",
            "closed",
        ],
        message: str,
    ) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a caller must know of the loaded model to build a valid `EngineRequest`."""

    vocab_size: int
    context_length: int
    """Prompt and output tokens together."""
    stop_ids: frozenset[int]
    """The end tokens of the model's generation_config."""
    temperature: float
    """Default temperature of the model's generation_config; 0 where it does not sample."""
    top_p: float
    """Default top_p of the same; 1 where it does not sample."""
    top_k: int = 0
    """Default top_k of the same; 0 where it has none or does not sample."""
    min_p: float = 0.0
    """Default min_p of the same; 0 where it has none or does not sample."""
    repetition_penalty: float = 1.0
    """Default repetition_penalty of the same; it counts where the model does not sample, too."""
    max_new_tokens: int | None = None
    """Of the same: the longest output where a request gives no limit; None is as long as there is room."""
    adapters: tuple[str, ...] = ()
    """Names of the adapters that requests may ask for."""
    attention: str = ""
    """What computes attention: `sdpa`, torch's own, or the name of a kernel."""
    decode: str = ""
    """How steps of one token a request are computed: `eager`, operation by operation, or `graphs`, replayed;
    `static` is what is recorded as graphs, and is for tests."""


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """How long the recent steps took: half of them at most `p50`, and so on."""

    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """A snapshot of the engine; counters run from its start, through its deaths."""

    running: int
    waiting: int
    kv_blocks_used: int
    kv_blocks_total: int
    steps: int
    tokens: int
    """Generated."""
    alive: bool
    computed_tokens: int = 0
    """That went through the model, of prompts and outputs, those of preempted requests each time."""
    prompt_tokens: int = 0
    """Of the requests that were begun."""
    cached_tokens: int = 0
    """Of the prompt tokens, those that the prefix cache had."""
    preemptions: int = 0
    deaths: int = 0
    tokens_per_second: float = 0.0
    """Generated in the recent seconds; 0 after a while without work."""
    step_seconds: StepSeconds = StepSeconds()

    @property
    def prefix_hit_rate(self) -> float:
        """The part of all prompt tokens that was not computed."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


class Engine(Protocol):
    """The handle. Every request that `submit` accepts ends in exactly one `Finished` or `Failed`."""

    @property
    def capabilities(self) -> ModelInfo: ...

    def check(self, request: EngineRequest) -> None:
        """Raises `RequestRefused` if the request could never run. Pure; any thread."""

    def submit(self, request: EngineRequest) -> None:
        """Queues the request. Raises `RequestRefused`. Any thread."""

    def cancel(self, request_id: str) -> None:
        """Asks for the request's end; idempotent. Any thread."""

    def hold(self, held: bool) -> None:
        """Lets no step begin until it is released again: whoever takes the tokens is behind.

        Requests are accepted and cancelled meanwhile. Idempotent; any thread.
        """

    def stats(self) -> Stats:
        """Any thread."""

    def close(self, *, drain: bool) -> None:
        """Ends the thread: after the accepted requests (`drain`), or after cancelling them. Idempotent."""
