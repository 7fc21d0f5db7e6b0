"""`EngineCore`, the engine thread's loop: inbox -> schedule -> execute -> deliver, once a step.

An error of one request ends only that request; the messages of a step are delivered together.

With a pipelined executor the host works while the device computes: an iteration launches the next step's
forward pass, whose input tokens the device already has, and only then reads the tokens of the previous step.

    host:    plan n+1 -> begin n+1 -> read n, queue messages -> sample n+1 (masks, penalties) -> plan n+2 ...
    device:              |- forward n+1 ------------------------| sample n+1 |- forward n+2 ...

So between two plans a request has at most one token in flight: sampled and not yet read. Everything that
depends on token values (stop conditions, grammars, penalties) happens after they have been read. A request
that ends while its token is in flight has a surplus row in the launched pass; it is not sampled.
"""

import logging
import queue
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import inf
from time import monotonic

from engine.config import SchedulerLimits
from engine.core.step_metrics import EngineMetrics
from engine.executor import (
    Executor,
    ForwardHandle,
    OutOfMemory,
    PendingTokens,
    RowFailure,
    SampledToken,
    SequenceFailed,
    StepAbandoned,
)
from engine.front.request_registry import Inbound, InboxReader, RequestRegistry
from engine.request import (
    CancelReason,
    Deliver,
    Failed,
    FailureCode,
    Finished,
    FinishReason,
    Tokens,
    describe,
)
from engine.scheduling.scheduler import ComputedBlocks, Scheduler, SchedulerOutput
from engine.scheduling.sequence import TokenSequence

log = logging.getLogger(__name__)

IDLE_CHECK_SECONDS = 1.0
"""After this time without work the engine checks the integrity of scheduler and block pool."""


@dataclass(frozen=True, slots=True)
class _InFlightStep:
    """A step whose tokens have been sampled and not read."""

    pending: PendingTokens
    progress: dict[TokenSequence, ComputedBlocks]
    began: float


class EngineCore(InboxReader):
    """The engine thread's state; `run` is the thread's body."""

    def __init__(
        self,
        executor: Executor,
        limits: SchedulerLimits,
        registry: RequestRegistry,
        deliver: Deliver,
        metrics: EngineMetrics,
        watchdog: AbstractContextManager[None],
    ) -> None:
        super().__init__(registry, deliver, metrics.requests)
        self._executor = executor
        self._scheduler = Scheduler(limits, metrics.counters, executor.drafts)
        self._metrics = metrics
        self._watchdog = watchdog
        self._sequences: dict[str, TokenSequence] = {}
        self._in_flight: _InFlightStep | None = None
        self._last_read_at = -inf

    def run(self, *, after_death: bool = False) -> BaseException | None:
        """Steps until closed. Returns None, or the exception that ended it, for which `fail_all` is due."""
        try:
            with self._executor.thread_context():
                if after_death:
                    self._executor.scrub(list(range(1, self._scheduler.pool.total + 1)))
                self._metrics.publish(running=0, kv_blocks_used=0)
                while not (self._closing and self._scheduler.idle):
                    self._read_inbox()
                    with self._watchdog:
                        if not self._paused and (self._in_flight or not self._scheduler.idle):
                            self._step()
                        self._publish()
            self._scheduler.check_integrity()
        except StepAbandoned as abandoned:
            return abandoned
        except BaseException as error:
            log.exception("the engine died")
            return error
        return None

    # Inbox

    def _read_inbox(self) -> None:
        """Handles all messages; waits for one if there is nothing to compute or the engine is paused."""
        if self._paused or (self._scheduler.idle and not self._closing):
            self._handle(self._wait())
        while not self._registry.inbox.empty():
            self._handle(self._registry.inbox.get())

    def _wait(self) -> Inbound:
        try:
            return self._registry.inbox.get(timeout=IDLE_CHECK_SECONDS)
        except queue.Empty:
            self._scheduler.check_integrity()
            self._metrics.reset_rate()
        return self._registry.inbox.get()

    def _live_sequences(self) -> dict[str, TokenSequence]:
        return self._sequences

    def _begin(self, sequence: TokenSequence) -> None:
        # Computes the digests that planning needs, where an error fails this request only.
        self._scheduler.prepare(sequence)
        self._sequences[sequence.request.request_id] = sequence
        self._scheduler.add(sequence)

    def _cancel(self, request_id: str, reason: CancelReason) -> None:
        if sequence := self._sequences.get(request_id):
            self._finish(sequence, reason)

    # A step

    def _step(self) -> None:
        """Launches the next step; reads the tokens of the previous one, or its own if not pipelined."""
        plan = () if self._scheduler.idle else self._scheduler.plan()
        assert plan or self._in_flight, "there are requests, but none of them can move"
        began = monotonic()
        forward: ForwardHandle | None = None
        pending: PendingTokens | None = None
        error: Exception | None = None
        if plan:
            try:
                with self._watchdog:
                    if self._scheduler.dirty:  # before the step can read or share them; kept if this fails
                        self._executor.scrub(self._scheduler.dirty)
                        self._scheduler.dirty.clear()
                    forward = self._executor.begin(plan)
            except Exception as raised:  # noqa: BLE001 - logged, and delivered to the requests
                error = raised
        self._collect()
        plan = tuple(chunk for chunk in plan if self._is_live(chunk.sequence))
        if forward is not None and plan:
            try:
                with self._watchdog:
                    pending = forward.sample(self._is_live)
            except Exception as raised:  # noqa: BLE001 - logged, and delivered to the requests
                error = raised
        if error is not None and plan:
            self._handle_step_error(plan, error)
        elif pending is not None:
            self._dispatch(plan, pending, began)
        error = None  # its traceback refers to this frame and to the step's tensors
        if not self._executor.pipelined:
            self._collect()

    def _dispatch(self, plan: SchedulerOutput, pending: PendingTokens, began: float) -> None:
        computed = self._scheduler.counters.computed_tokens
        progress = {each.sequence: each for each in self._scheduler.advance(plan)}
        if self._scheduler.admitted:
            self._request_metrics.started(filter(self._is_live, self._scheduler.admitted), began)
            self._scheduler.admitted.clear()
        self._request_metrics.step(self._scheduler.counters.computed_tokens - computed)
        for part in pending.prompt_logprobs:
            self._sequences[part.request_id].num_prompt_logprobs_sent = part.begin + len(part.logprobs)
        self._outbox += pending.prompt_logprobs
        for sequence in pending.sequences:
            sequence.in_flight = True
        self._in_flight = _InFlightStep(pending, progress, began)

    def _collect(self) -> None:
        in_flight, self._in_flight = self._in_flight, None
        if in_flight is None or not any(map(self._is_live, in_flight.progress)):
            return
        pending = in_flight.pending
        with self._watchdog:
            result = pending.read()
        for sequence, finite in zip(pending.partial_prefills, result.prefills_finite, strict=True):
            if finite and self._is_live(sequence):
                self._scheduler.confirm(in_flight.progress[sequence])
        now = monotonic()
        rows = [row for row in zip(pending.sequences, result.sampled, strict=True) if self._is_live(row[0])]
        got_token = frozenset(sequence for sequence, sampled in rows if not isinstance(sampled, RowFailure))
        several = {
            seq: 1 + len(each.accepted)
            for seq, each in rows
            if isinstance(each, SampledToken) and each.accepted
        }
        self._request_metrics.tokens(got_token, now, several)
        for sequence, sampled in rows:
            self._apply_result(in_flight.progress[sequence], sampled)
        if pending.sequences or not self._executor.pipelined:
            tokens = len(result.sampled) + sum(several.values()) - len(several)
            self._metrics.record_step(max(in_flight.began, self._last_read_at), now, tokens)
        self._last_read_at = now

    def _is_live(self, sequence: TokenSequence) -> bool:
        return self._sequences.get(sequence.request.request_id) is sequence

    def _apply_result(self, progress: ComputedBlocks, result: SampledToken | RowFailure) -> None:
        sequence = progress.sequence
        if isinstance(result, RowFailure):
            # Blocks not known to be finite were never cached; the cached ones of this request are dropped,
            # too.
            self._scheduler.pool.uncache(sequence.blocks)
            self._fail(sequence, result.code, result.message)
            return
        token_ids = (result.token_id, *(token.token_id for token in result.accepted))
        logprobs = None
        if result.logprobs is not None:
            logprobs = (result.logprobs, *(token.logprobs for token in result.accepted if token.logprobs))
        self._outbox.append(Tokens(sequence.request.request_id, token_ids, logprobs))
        try:
            for token_id in token_ids:
                # Of the last token, because no token that ends a request is drafted.
                reason = sequence.append(token_id)
        except Exception as error:
            log.exception("request %s cannot be handled", sequence.request.request_id)
            self._fail(sequence, "engine_error", describe(error))
            return
        self._scheduler.accept(progress, len(result.accepted), rest_failed=result.rest_failed)
        if reason is not None:
            self._finish(sequence, reason)

    def _handle_step_error(self, plan: SchedulerOutput, error: Exception) -> None:
        """Fails the request that `error` names, retries smaller after `OutOfMemory`, else fails them all."""
        if isinstance(error, SequenceFailed):
            if self._is_live(error.sequence):
                self._fail(error.sequence, error.code, str(error))
            return
        if isinstance(error, OutOfMemory):
            self._relieve_memory(plan, error)
            return
        log.error("a step failed; its %d requests end", len(plan), exc_info=error)
        for chunk in plan:
            self._fail(chunk.sequence, "engine_error", describe(error))

    def _relieve_memory(self, plan: SchedulerOutput, error: OutOfMemory) -> None:
        """Halves the token budget after a prefill, else preempts the last request; a lone one fails."""
        if plan[-1].count > 1 and not plan[-1].draft and self._scheduler.halve_budget():
            log.warning("out of memory: prompts will be computed in smaller chunks")
            return
        if self._scheduler.reduce_running(plan):
            log.warning("out of memory: fewer requests will be computed at a time")
            return
        last = self._scheduler.last_of(plan)
        self._fail(last, "out_of_memory", str(error))

    # Ends

    def _finish(self, sequence: TokenSequence, reason: FinishReason) -> None:
        self._end(sequence, Finished(sequence.request.request_id, reason, sequence.usage))

    def _fail(self, sequence: TokenSequence, code: FailureCode, message: str) -> None:
        log.warning("request %s failed (%s): %s", sequence.request.request_id, code, message)
        self._end(sequence, Failed(sequence.request.request_id, code, message, sequence.usage))

    def _end(self, sequence: TokenSequence, last: Finished | Failed) -> None:
        last = self._with_times(sequence, last)
        self._scheduler.remove(sequence)
        del self._sequences[sequence.request.request_id]
        self._outbox.append(last)
        self._ended.append(last.request_id)

    def _publish(self) -> None:
        with self._watchdog:  # raises if a hang was declared, and all of this has been delivered
            self._metrics.publish(running=self._scheduler.running, kv_blocks_used=self._scheduler.pool.used)
            self._flush_outbox()
