"""Everything that crosses the engine thread's border, and nothing else.

Inwards go `Job` and `Cancel`; outwards come `Tokens`, `Finished` and `Failed`, handed over in one list
per engine step. All of it is plain data (no tensor, no callable), so that the engine can be moved to a
process of its own. Token ids only: this file knows nothing of text, HTTP, items or tenants.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

FinishReason = Literal["stop", "length", "cancelled"]
"""`stop`: a stop token came; `length`: the limit was reached; `cancelled`: `Cancel` was received."""

FailureCode = Literal["out_of_memory", "engine_error", "engine_dead", "overloaded"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the next token is drawn.

    Randomness comes from a counter-based generator keyed by (`seed`, position), where the position counts
    prompt and output tokens together. A job whose prompt is another job's prompt plus its first outputs
    therefore continues with the draws that the other job would have made.
    """

    seed: int
    temperature: float = 1.0
    """0 is greedy; otherwise the logits are divided by it. At least 0."""
    top_p: float = 1.0
    """Draw from the smallest set of tokens whose probability reaches this. In (0, 1]."""
    top_k: int = 0
    """Draw from the k likeliest tokens; 0 is no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the engine is given: token ids and limits."""

    job_id: str
    prompt: tuple[int, ...]
    max_tokens: int
    """The most tokens to generate, a stop token included. At least 1."""
    sampling: Sampling
    stop_ids: frozenset[int] = frozenset()
    """Generation ends with the first of these; it is delivered as the last token."""
    cache_salt: str = ""
    """Jobs share cached prefixes only with jobs of the same salt."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Ends a job with `Finished("cancelled")` within one step; an unknown or ended job is ignored."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens that one step gave one job, in order."""

    job_id: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one job. `cached` of the `prompt` tokens were taken from the prefix cache."""

    prompt: int = 0
    cached: int = 0
    output: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    """The job ended as it should. Its last message."""

    job_id: str
    reason: FinishReason
    usage: Usage


@dataclass(frozen=True, slots=True)
class Failed:
    """The job could not be finished. Its last message. `message` is for the log, not for clients."""

    job_id: str
    code: FailureCode
    message: str
    usage: Usage = field(default_factory=Usage)


Outbound = Tokens | Finished | Failed


class Deliver(Protocol):
    """Called on the engine thread once per step with that step's messages; must not block."""

    def __call__(self, messages: Sequence[Outbound], /) -> None: ...


class JobRefused(Exception):
    """The job can never run as it stands; nothing was queued.

    `reason` is machine-readable, `str()` is a sentence for the caller.
    """

    def __init__(
        self,
        reason: Literal[
            "bad_token",
            "bad_limit",
            "bad_sampling",
            "too_long",
            "duplicate",
            "overloaded",
            "closed",
        ],
        message: str,
    ) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a caller must know of the loaded model to build a valid `Job`."""

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


@dataclass(frozen=True, slots=True)
class Stats:
    """A snapshot of the engine; counters run from its start."""

    running: int
    waiting: int
    kv_blocks_used: int
    kv_blocks_total: int
    steps: int
    tokens: int
    alive: bool


class Engine(Protocol):
    """The handle. Every job that `submit` accepts ends in exactly one `Finished` or `Failed`."""

    @property
    def capabilities(self) -> Capabilities: ...

    def check(self, job: Job) -> None:
        """Raises `JobRefused` if the job could never run. Pure; any thread."""

    def submit(self, job: Job) -> None:
        """Queues the job. Raises `JobRefused`. Any thread."""

    def cancel(self, job_id: str) -> None:
        """Asks for the job's end; idempotent. Any thread."""

    def stats(self) -> Stats:
        """Any thread."""

    def close(self, *, drain: bool) -> None:
        """Ends the thread: after the accepted jobs (`drain`), or after cancelling them. Idempotent."""
