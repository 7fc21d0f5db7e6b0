"""The border between the engine's loop and what computes a step: a model, or a script.

Types only; engine thread. Ignorant of how tokens come about, and of torch.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from engine.grammar.compiler import GrammarCompiler
from engine.request import FailureCode, ModelInfo, PromptLogprobs, TokenLogprobs
from engine.scheduling.scheduler import SchedulerOutput
from engine.scheduling.sequence import TokenSequence
from engine.vocabulary import Vocabulary


class OutOfMemory(Exception):
    """The step did not fit into the device's memory; a smaller one may."""


class EngineFault(BaseException):
    """Nothing can be computed any more. A BaseException: no handler of one request's errors may keep it."""


@dataclass(frozen=True, slots=True)
class RowFailure:
    """One request's part of a step went wrong; the other requests' parts stand."""

    code: FailureCode
    message: str


@dataclass(frozen=True, slots=True)
class SampledToken:
    """One request's next token."""

    token_id: int
    logprobs: TokenLogprobs | None = None
    """If the request asked for them."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step gave."""

    drawn: list[SampledToken | RowFailure]
    """In order, one for each chunk that draws."""
    finite: list[bool]
    """In order, one for each chunk that does not draw: whether what it computed is known to be finite."""
    prompt_logprobs: list[PromptLogprobs] = field(default_factory=list)


class PendingTokens(Protocol):
    """The tokens of a step, drawn and on their way."""

    @property
    def sequences(self) -> list[TokenSequence]:
        """Whose tokens they are."""

    @property
    def told(self) -> list[PromptLogprobs]:
        """What was asked of prompts; it is there already."""

    @property
    def partial(self) -> list[TokenSequence]:
        """Of whose prompts a part was computed, after which nothing is drawn."""

    def read(self) -> StepResult:
        """Waits for the tokens, one for each of `sequences`, and for what is known of `partial`.

        Raises `EngineFault`.
        """


class ForwardHandle(Protocol):
    """A step whose forward pass was begun."""

    def draw(self, lives: Callable[[TokenSequence], bool]) -> PendingTokens:
        """Samples for the live requests, whose tokens are known. Raises as `execute` does."""


class PipelinedExecutor(Protocol):
    """Computes steps before the tokens of the last one are known; see `loop`."""

    def begin(self, plan: SchedulerOutput) -> ForwardHandle:
        """Begins the plan's forward pass; tokens in flight are those of the last draw. Raises as `execute`
        does.
        """


class Executor(Protocol):
    """Computes steps. Called on the engine thread only, but for `interrupt`."""

    @property
    def capabilities(self) -> ModelInfo: ...

    @property
    def vocabulary(self) -> Vocabulary | None:
        """What the tokens spell; None if that is not known."""

    @property
    def grammars(self) -> GrammarCompiler | None:
        """Compiles the grammars of requests; None if what the tokens spell is not known."""

    @property
    def ahead(self) -> PipelinedExecutor | None:
        """For an executor that computes on a device of its own, while the host does other things."""

    def thread_context(self) -> AbstractContextManager[object]:
        """Entered by the engine thread for its whole life."""

    def execute(self, plan: SchedulerOutput) -> StepResult:
        """Computes the plan.

        Raises `OutOfMemory` or `EngineFault`; any other exception fails the requests of this step.
        """

    def scrub(self, blocks: list[int]) -> None:
        """Overwrites blocks whose content may not be finite."""

    def close(self) -> None:
        """The engine thread has ended: lets go of what lives outside it. Idempotent."""

    def interrupt(self) -> None:
        """The engine is closing: stop waiting for anything but the computation. Any thread."""
