"""`ScriptedEngine`: the engine with scripted or pseudo-random tokens instead of a model and torch, for tests.

Engine core, scheduler and block pool are the real ones. An answer is a pure function of the prompt and,
unless the request is greedy, of its seed: a request whose prompt is another's prompt plus its first output
tokens returns the rest of that output and ends where it ended, in another process, too.
"""

import hashlib
import math
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal, get_args
from weakref import WeakKeyDictionary

from engine.config import SchedulerLimits
from engine.core.local_engine import LocalEngine
from engine.executor import EngineFault, OutOfMemory, PendingTokens, RowFailure, SampledToken, StepResult
from engine.grammar.compiler import GrammarCompiler
from engine.request import (
    Deliver,
    EngineRequest,
    FailureCode,
    ImageText,
    ModelInfo,
    OnEngineDeath,
    PromptLogprobs,
    RequestRefused,
    TokenLogprobs,
)
from engine.sampling.token_masks import Masks, TokenMasks, allows_token
from engine.scheduling.scheduler import ScheduledChunk, SchedulerOutput
from engine.scheduling.sequence import TokenSequence
from engine.vocabulary import Vocabulary

FaultKind = Literal["fail", "raise", "oom", "hang", "die", "crash"]
FAULT_KINDS: tuple[FaultKind, ...] = get_args(FaultKind)


class Crash(BaseException):
    pass


RAISED: dict[str, type[BaseException]] = {
    "raise": RuntimeError, "oom": OutOfMemory, "die": EngineFault, "crash": Crash
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault in place of a request's output token number `at_token` (from 0)."""

    kind: FaultKind
    """`fail`: the request ends in `Failed(code)`; `raise`: the step fails with all its requests; `oom`: the
    step raises `OutOfMemory` once; `hang`: the engine thread blocks until `resume` or `close`; `die`: the
    engine dies for good; `crash`: the engine thread dies, restarted if it is the first time in a minute."""
    at_token: int = 0
    code: FailureCode = "engine_error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    tokens: tuple[int, ...] | None = None
    """The whole answer, its stop token included; None draws `length` tokens from the vocabulary."""
    length: int = 32
    """Tokens of a drawn answer, of which the last is the stop token."""
    fault: Fault | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedConfig(SchedulerLimits):
    vocabulary: tuple[int, ...]
    """The ids of random answers; use ids that decode to plain text."""
    stop_id: int
    vocab_size: int
    context_length: int = 8192
    temperature: float = 0.0
    top_p: float = 1.0
    script: Script = Script()
    """For requests for which the engine's `scripts` returns None."""
    step_seconds: float = 0.0
    """Duration of a step, and so the time between two tokens of a request."""
    kv_blocks: int = 16384
    token_budget: int = 8192
    adapters: tuple[str, ...] = ()
    weights: str = ""
    """`ModelInfo.weights` of the model without an adapter; empty if it is not known."""
    spelling: Vocabulary | None = None
    """The bytes of the ids; without it, stop strings and grammars are refused."""

    def __post_init__(self) -> None:
        SchedulerLimits.__post_init__(self)  # which `slots` hide from `super`
        if not self.vocabulary or self.stop_id in self.vocabulary:
            raise ValueError("vocabulary must have ids, and not the stop id")
        if not all(0 <= token < self.vocab_size for token in (*self.vocabulary, self.stop_id)):
            raise ValueError("vocabulary and stop_id must be below vocab_size")
        if self.script.length < 1:
            raise ValueError("a script's length must be at least 1")


class ScriptedEngine(LocalEngine):
    """`scripts` returns the script of a request, or None for the one in the config."""

    def __init__(
        self,
        config: ScriptedConfig,
        deliver: Deliver,
        scripts: Callable[[EngineRequest], Script | None] = lambda _request: None,
        on_dead: OnEngineDeath = lambda _why: None,
    ) -> None:
        self._scripted = _ScriptedExecutor(config, scripts)
        super().__init__(self._scripted, config, deliver, on_dead)

    def order_fault(self, fault: Fault) -> None:
        """Gives this fault to the next request whose script has none. Any thread."""
        self._scripted.ordered_faults.append(fault)

    def resume(self) -> None:
        self._scripted.resume()

    @property
    def hanging(self) -> threading.Event:
        return self._scripted.hanging


class _ScriptedExecutor:
    def __init__(self, config: ScriptedConfig, scripts: Callable[[EngineRequest], Script | None]) -> None:
        self._config = config
        self._scripts = scripts
        self._answers: WeakKeyDictionary[TokenSequence, _Answer] = WeakKeyDictionary()
        self._closing = threading.Event()
        self._resumed = threading.Event()
        self.hanging = threading.Event()
        self.ordered_faults: deque[Fault] = deque()
        self.grammars = None if config.spelling is None else GrammarCompiler(config.spelling)
        vocab_size = config.vocab_size if config.spelling is None else len(config.spelling.tokens)
        self._masks = TokenMasks(self.grammars, vocab_size)
        self.pipelined = False
        self.drafts = None
        self.model_info = ModelInfo(
            vocab_size=config.vocab_size,
            context_length=config.context_length,
            stop_ids=frozenset({config.stop_id}),
            temperature=config.temperature,
            top_p=config.top_p,
            adapters=config.adapters,
            weights={"": config.weights} if config.weights else {},
        )

    def image_text(self, _data: bytes, _digest: bytes, _cache_salt: str) -> ImageText:
        raise RequestRefused("bad_image", "The model reads no pictures.")

    def thread_context(self) -> AbstractContextManager[object]:
        return nullcontext()

    def begin(self, plan: SchedulerOutput) -> "_ScriptedStep":
        if self._config.step_seconds:
            self._closing.wait(self._config.step_seconds)
        prompt_logprobs = [token for chunk in plan if (token := _prompt_logprobs_of(chunk)) is not None]
        sequences = [chunk.sequence for chunk in plan if chunk.samples_token]
        masks = self._masks.of(sequences)
        sampled = [self._next(sequence) for sequence in sequences]
        partial_prefills = [chunk.sequence for chunk in plan if not chunk.samples_token]
        if masks is not None:
            self._apply_masks(sampled, sequences, masks)
        result = StepResult(sampled, [True] * len(partial_prefills))
        return _ScriptedStep(PendingTokens(sequences, prompt_logprobs, partial_prefills, lambda: result))

    def scrub(self, blocks: list[int]) -> None: ...

    def close(self) -> None:
        if self.grammars is not None:
            self.grammars.close()

    def interrupt(self) -> None:
        self._closing.set()
        self.resume()

    def resume(self) -> None:
        self._resumed.set()

    def _next(self, sequence: TokenSequence) -> SampledToken | RowFailure:
        answer = self._answers.get(sequence)
        if answer is None:
            answer = self._answers[sequence] = self._start_answer(sequence.request)
        fault = answer.fault
        if fault is not None and sequence.output_count == fault.at_token:
            if fault.kind == "fail":
                return RowFailure(fault.code, "A fault of the script.")
            answer.fault = None
            if fault.kind != "hang":
                raise RAISED[fault.kind]("A fault of the script.")
            self._hang()
        token_id = answer.token(sequence)
        if sequence.must_not_stop_after(0) and token_id in sequence.ends:
            token_id = next((i for i in self._config.vocabulary if i not in sequence.ends), token_id)
        return SampledToken(token_id, _logprobs_of(sequence.request, token_id))

    def _apply_masks(
        self, sampled: list[SampledToken | RowFailure], sequences: list[TokenSequence], masks: Masks
    ) -> None:
        """Replaces tokens that grammars or rules forbid by allowed ones."""
        for row, mask in masks.of.items():
            token, sequence = sampled[row], sequences[row]
            if isinstance(token, SampledToken) and row not in masks.failed:
                token_id = self._allowed(token.token_id, sequence, mask)
                sampled[row] = SampledToken(token_id, _logprobs_of(sequence.request, token_id))
        for row, message in masks.failed.items():
            sampled[row] = RowFailure("engine_error", message)

    def _allowed(self, token_id: int, sequence: TokenSequence, mask: bytes) -> int:
        """The token if it is allowed; else a stop id, if the answer is long enough; else any allowed id."""
        stops = [stop for stop in sorted(sequence.request.stop_ids) if allows_token(mask, stop)]
        script = self._answers[sequence].script
        if allows_token(mask, token_id):
            return token_id
        if stops and sequence.output_position + 1 >= script.length:
            return stops[0]
        usual = [usual for usual in self._config.vocabulary if allows_token(mask, usual)]
        usual = usual or stops or [i for i in range(self._config.vocab_size) if allows_token(mask, i)]
        key = f"{sequence.request.sampling.seed}:{sequence.tokens[-8:]}".encode()
        return usual[int.from_bytes(_digest(key), "little") % len(usual)]

    def _start_answer(self, request: EngineRequest) -> "_Answer":
        script = self._scripts(request) or self._config.script
        fault = script.fault
        if fault is None and self.ordered_faults:
            fault = self.ordered_faults.popleft()
        return _Answer(request, script, self._config, fault)

    def _hang(self) -> None:
        self._resumed.clear()
        if self._closing.is_set():  # checked after `clear`: `interrupt` sets them in this order
            return
        self.hanging.set()
        self._resumed.wait()
        self.hanging.clear()


@dataclass(frozen=True, slots=True)
class _ScriptedStep:
    """Implements `executor.ForwardHandle`; all is computed."""

    pending: PendingTokens

    def sample(self, _is_live: Callable[[TokenSequence], bool]) -> PendingTokens:
        return self.pending


def _logprobs_of(request: EngineRequest, token_id: int) -> TokenLogprobs | None:
    if request.logprobs is None:
        return None
    if request.logprob_token_ids:
        named = enumerate(request.logprob_token_ids, start=1)
        return TokenLogprobs(-math.log(2), tuple((other, -math.log(2) * rank) for rank, other in named))
    return _logprobs(token_id, request.logprobs)


def _logprobs(token_id: int, count: int) -> TokenLogprobs:
    """Made-up logprobs: the token first, each further id half as likely as the one before."""
    others = [other for other in range(count + 1) if other != token_id][: max(0, count - 1)]
    top = tuple((other, -math.log(2) * rank) for rank, other in enumerate([token_id, *others], start=1))
    return TokenLogprobs(-math.log(2), top[:count])


def _prompt_logprobs_of(chunk: ScheduledChunk) -> PromptLogprobs | None:
    """The prompt logprobs that are due with this chunk."""
    request, pending = chunk.sequence.request, chunk.sequence.pending_prompt_logprobs
    stop = min(chunk.start + chunk.count + 1, pending.stop)
    if not pending or pending[0] >= stop:
        return None
    logprobs = [
        _logprobs(token_id, request.prompt_logprobs or 0) for token_id in request.prompt[pending[0] : stop]
    ]
    return PromptLogprobs(request.request_id, pending[0], tuple(logprobs))


class _Answer:
    """One request's answer, of which the prompt may already contain the beginning."""

    def __init__(
        self, request: EngineRequest, script: Script, config: ScriptedConfig, fault: Fault | None
    ) -> None:
        self.script = script
        self.fault = fault
        self._config = config
        self._generated_before = 0
        """Number of tokens of `Script.tokens` at the end of the prompt."""
        if script.tokens is not None:
            prompt, tokens = request.prompt, script.tokens
            lengths = range(min(len(tokens), len(prompt)), 0, -1)
            self._generated_before = next((n for n in lengths if prompt[-n:] == tokens[:n]), 0)
        seed = request.sampling.seed if request.sampling.temperature > 0 else 0
        self._digest = _digest(f"{seed}{request.adapter}".encode(errors="surrogatepass"))
        self._num_digested = 0
        self._matching_tokens = 0

    def token(self, sequence: TokenSequence) -> int:
        if self.script.tokens is None:
            return self._random_token(sequence)
        rest = self.script.tokens[self._generated_before + sequence.output_count :]
        return rest[0] if rest else self._config.stop_id

    def _random_token(self, sequence: TokenSequence) -> int:
        """A hash of the seed and of all tokens before.

        Tokens at the end of the prompt that match this rule count as earlier output. A prompt matches by
        chance with a probability of 1 / len(vocabulary), and then gets a shorter answer.
        """
        for token_id in sequence.tokens[self._num_digested :]:
            self._matching_tokens = self._matching_tokens + 1 if token_id == self._choice() else 0
            self._digest = _digest(self._digest + token_id.to_bytes(8, "little"))
        self._num_digested = len(sequence.tokens)
        return self._config.stop_id if self._matching_tokens >= self.script.length - 1 else self._choice()

    def _choice(self) -> int:
        return self._config.vocabulary[int.from_bytes(self._digest, "little") % len(self._config.vocabulary)]


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=8).digest()
