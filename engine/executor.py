"""The `Executor` protocol of `ModelRunner` and `ScriptedEngine`; results of a step. Types only; no torch."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from engine.grammar.compiler import GrammarCompiler
from engine.request import FailureCode, ImageText, ModelInfo, PromptLogprobs, TokenLogprobs
from engine.scheduling.drafts import DraftPlanner
from engine.scheduling.scheduler import SchedulerOutput
from engine.scheduling.sequence import TokenSequence


class OutOfMemory(Exception):
    """The step did not fit into the device's memory; a smaller one may."""


class SequenceFailed(Exception):
    """The step cannot be computed with this sequence; its other requests can be, in another step."""

    def __init__(self, sequence: TokenSequence, code: FailureCode, message: str) -> None:
        super().__init__(message)
        self.sequence = sequence
        self.code = code


class EngineFault(BaseException):
    """The device has failed for good. A BaseException, so that handlers of one request's errors miss it."""


class StepAbandoned(BaseException):
    """Raised on the engine thread when a step returns after `core.watchdog.Watchdog` declared a hang."""


@dataclass(frozen=True, slots=True)
class RowFailure:
    """One request's row of a step failed; the results of the other rows are valid."""

    code: FailureCode
    message: str


@dataclass(frozen=True, slots=True)
class SampledToken:
    token_id: int
    logprobs: TokenLogprobs | None = None
    """None if the request has no `logprobs`."""
    accepted: tuple["SampledToken", ...] = ()
    """The tokens after it: this one is the first of the draft, the next one the second, and so on."""
    rest_failed: bool = False
    """A row behind these has no token: what the step computed of the rest of the draft may not be finite."""


@dataclass(frozen=True, slots=True)
class StepResult:
    sampled: list[SampledToken | RowFailure]
    """One for each of `PendingTokens.sequences`."""
    prefills_finite: list[bool]
    """One for each of `PendingTokens.partial_prefills`: whether its keys and values are finite."""


@dataclass(frozen=True, slots=True)
class PendingTokens:
    """Sampled tokens of a step, with their transfer to the host under way."""

    sequences: list[TokenSequence]
    prompt_logprobs: list[PromptLogprobs]
    """The log probabilities of prompt tokens that this step computed, on the host."""
    partial_prefills: list[TokenSequence]
    """The sequences of which this step computed a part of the prompt without sampling a token."""
    read: Callable[[], StepResult]
    """Waits for the transfer. Raises `EngineFault`."""


class ForwardHandle(Protocol):
    """A step whose forward pass has been launched."""

    def sample(self, is_live: Callable[[TokenSequence], bool]) -> PendingTokens:
        """Samples for live sequences; all their earlier tokens are known by now. Raises as `begin` does."""


class Executor(Protocol):
    """Computes steps. Called on the engine thread only, except `interrupt`."""

    @property
    def model_info(self) -> ModelInfo: ...

    @property
    def grammars(self) -> GrammarCompiler | None:
        """The grammar compiler; None without a tokenizer."""

    @property
    def pipelined(self) -> bool:
        """The device computes while the host works: a step begins before the last one's tokens are read."""

    @property
    def drafts(self) -> DraftPlanner | None:
        """None if a step computes one token of each request that generates."""

    def image_text(self, data: bytes, digest: bytes, cache_salt: str, /) -> ImageText:
        """See `engine.request.Engine`; `digest` is the SHA-256 of `data`. Any thread."""

    def thread_context(self) -> AbstractContextManager[object]:
        """Entered by the engine thread for its whole life."""

    def begin(self, plan: SchedulerOutput) -> ForwardHandle:
        """Launches the plan's forward pass; tokens in flight are those of the last `sample`.

        Raises `OutOfMemory`, `SequenceFailed`, `EngineFault`; another exception fails the step's requests.
        """

    def scrub(self, blocks: list[int]) -> None:
        """Overwrites blocks whose content may not be finite with zeros."""

    def close(self) -> None:
        """Releases threads and other resources, after the engine thread has ended. Idempotent."""

    def interrupt(self) -> None:
        """Ends waits other than the computation, because the engine is closing. Any thread."""
