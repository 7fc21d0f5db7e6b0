"""The engine thread: inbox -> schedule -> compute -> hand out, once a step.

Runs on the engine thread. Ignorant of models, of torch (that is the executor's) and of who listens. What
it promises: each request of the ledger gets exactly one `Finished` or `Failed`, whatever goes wrong;
trouble of one request stays that request's; the messages of a step are delivered together. Scheduler and
cache are ignorant of time: deadlines are kept here.

With an executor that computes on a device of its own, the host works while the device does: each turn
begins the next step's forward pass, whose inputs the device has, and only then reads what the last one drew.

    turn:    plan n+1 -> begin n+1 -> read n, tell of it -> draw n+1 (masks, penalties) -> plan n+2 ...
    device:              |- forward n+1 -----------------------| draw n+1 |- forward n+2 ...

So between two plans each request has at most one token in flight, drawn and not read. All that depends on
what tokens are happens after they were read, as it does without a device. A request that ends with its
token in flight has one row too many in the pass that was begun; nothing is drawn from it.
"""

import logging
import queue
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic

from engine.config import Limits
from engine.core.deadlines import Deadlines
from engine.core.metrics import EngineMetrics
from engine.core.request_registry import AcceptedRequest, Close, Inbound, RequestRegistry, Resumed
from engine.core.watchdog import StepAbandoned, Watchdog
from engine.executor import (
    Executor,
    ForwardHandle,
    OutOfMemory,
    PendingTokens,
    PipelinedExecutor,
    RowFailure,
    SampledToken,
)
from engine.request import (
    Cancel,
    Deliver,
    Failed,
    FailureCode,
    Finished,
    FinishReason,
    Outbound,
    PromptLogprobs,
    Tokens,
    Usage,
)
from engine.scheduling.scheduler import ComputedBlocks, Scheduler, SchedulerOutput
from engine.scheduling.sequence import TokenSequence

log = logging.getLogger(__name__)

HELD_CHECK_AFTER = 0.1
"""Seconds after which a held engine looks for requests whose time is over."""
IDLE_CHECK_AFTER = 1.0
"""Seconds without work after which the engine checks its books."""


@dataclass(frozen=True, slots=True)
class _InFlightStep:
    """A step whose tokens are in flight."""

    pending: PendingTokens
    progress: dict[TokenSequence, ComputedBlocks]
    began: float


class EngineCore:
    """One life of the engine thread. `run` is its body."""

    def __init__(
        self,
        executor: Executor,
        limits: Limits,
        ledger: RequestRegistry,
        deliver: Deliver,
        meter: EngineMetrics,
        watchdog: Watchdog,
    ) -> None:
        self._executor = executor
        self._scheduler = Scheduler(limits, meter.tally)
        self._ledger = ledger
        self._deliver = deliver
        self._meter = meter
        self._watchdog = watchdog
        self._sequences: dict[str, TokenSequence] = {}
        self._deadlines = Deadlines()
        self._outbox: list[Outbound] = []
        self._ended: list[str] = []
        """The requests whose last message is in the outbox."""
        self._arrivals = 0
        self._closing: Close | None = None
        self.delivering = False
        """The listener was called and has not come back."""
        self._flight: _InFlightStep | None = None
        self._read_at = float("-inf")

    def run(self, *, after_death: bool = False) -> BaseException | None:
        """Gives what it died of, of which no request has been told, or None after it was closed."""
        try:
            with self._executor.thread_context():
                if after_death:
                    self._executor.scrub(list(range(1, self._scheduler.pool.total + 1)))
                self._meter.tell(running=0, kv_blocks_used=0)
                self._work_until_closed()
            self._scheduler.check_integrity()
        except StepAbandoned as abandoned:
            return abandoned
        except BaseException as error:
            log.exception("the engine died")
            return error
        return None

    def bury(self, cause: BaseException) -> None:
        """Tells every request of the engine's death at once, also those that are still in the inbox."""
        told = self._outbox  # what the last step gave before it broke
        ended = set(self._ended)
        failures: list[Outbound] = []
        for request in self._ledger.end_all():
            if request.request_id not in ended:
                sequence = self._sequences.get(request.request_id)
                usage = sequence.usage if sequence else Usage(prompt=len(request.prompt))
                failures.append(Failed(request.request_id, "engine_dead", _describe(cause), usage))
        if told or failures:
            self._call_deliver([*told, *failures])

    def _work_until_closed(self) -> None:
        while not (self._closing and self._scheduler.idle):
            self._read_inbox()
            with self._watchdog:
                if self._deadlines:
                    self._end_overdue()
                if self._ledger.held and not self._closing:
                    self._wait_for_release()
                elif self._executor.ahead is not None:
                    self._turn(self._executor.ahead)
                elif not self._scheduler.idle:
                    self._step()
                self._hand_out()

    # Inbox

    def _read_inbox(self) -> None:
        """Takes all that is there; waits for something only when there is nothing to compute."""
        if self._scheduler.idle and not self._closing:
            self._handle(self._wait())
        while not self._ledger.inbox.empty():
            self._handle(self._ledger.inbox.get())

    def _wait(self) -> Inbound:
        try:
            return self._ledger.inbox.get(timeout=IDLE_CHECK_AFTER)
        except queue.Empty:
            self._scheduler.check_integrity()
            self._meter.rest()
        return self._ledger.inbox.get()

    def _wait_for_release(self) -> None:
        """For that, or for anything else that can be done without a step; deadlines are kept meanwhile."""
        with suppress(queue.Empty):
            self._handle(self._ledger.inbox.get(timeout=HELD_CHECK_AFTER))

    def _handle(self, message: Inbound) -> None:
        match message:
            case Resumed():
                pass
            case AcceptedRequest():
                self._begin(message)
            case Cancel(request_id):
                if sequence := self._sequences.get(request_id):
                    self._finish(sequence, "cancelled")
            case Close(drain):
                self._closing = message
                if not drain:
                    for sequence in list(self._sequences.values()):
                        self._finish(sequence, "cancelled")

    def _begin(self, accepted: AcceptedRequest) -> None:
        request = accepted.request
        self._arrivals += 1
        try:
            vocabulary = self._executor.vocabulary
            sequence = TokenSequence(request, self._arrivals, vocabulary, accepted.digests, accepted.grammar)
            # Planning needs the digests; a request for which there are none must not get so far.
            self._scheduler.prepare(sequence)
        except Exception as error:
            log.exception("request %s cannot be handled", request.request_id)
            usage = Usage(prompt=len(request.prompt))
            self._outbox.append(Failed(request.request_id, "engine_error", _describe(error), usage))
            self._ended.append(request.request_id)
            return
        self._sequences[request.request_id] = sequence
        self._scheduler.add(sequence)
        if accepted.due is not None:
            self._deadlines.add(sequence, accepted.due)

    def _end_overdue(self) -> None:
        for sequence in self._deadlines.pop_overdue(monotonic()):
            seconds = sequence.request.deadline_seconds
            self._fail(sequence, "deadline", f"The request was not done within {seconds} seconds.")

    # A step

    def _step(self) -> None:
        plan = self._scheduler.plan()
        assert plan, "there are requests, but none of them can move"
        began = monotonic()
        try:
            with self._watchdog:
                self._clean_blocks()
                result = self._executor.execute(plan)
        except Exception as error:  # noqa: BLE001 - the log is told, and the requests
            self._survive(plan, error)
            return
        drawing = [chunk.sequence for chunk in plan if chunk.draws]
        partial = [chunk.sequence for chunk in plan if not chunk.draws]
        progress = {each.sequence: each for each in self._scheduler.advance(plan)}
        self._tell_of_prompts(result.prompt_logprobs)
        for sequence, finite in zip(partial, result.finite, strict=True):
            if finite:
                self._scheduler.confirm(progress[sequence])
        for sequence, drawn in zip(drawing, result.drawn, strict=True):
            self._take(progress[sequence], drawn)
        self._meter.count_step(began, monotonic(), len(drawing))

    def _turn(self, ahead: PipelinedExecutor) -> None:
        """As `_step`, but what is read are the tokens of the step before."""
        plan = () if self._scheduler.idle else self._scheduler.plan()
        assert plan or self._flight or self._scheduler.idle, "there are requests, but none of them can move"
        began = monotonic()
        begun: ForwardHandle | None = None
        trouble: Exception | None = None
        if plan:
            try:
                with self._watchdog:
                    self._clean_blocks()
                    begun = ahead.begin(plan)
            except Exception as error:  # noqa: BLE001 - the log is told, and the requests
                trouble = error
        self._land()
        plan = tuple(chunk for chunk in plan if self._lives(chunk.sequence))
        pending: PendingTokens | None = None
        if begun is not None and plan:
            try:
                with self._watchdog:
                    pending = begun.draw(self._lives)
            except Exception as error:  # noqa: BLE001 - the log is told, and the requests
                trouble = error
        if trouble is not None and plan:
            self._survive(plan, trouble)
        elif pending is not None:
            self._take_off(plan, pending, began)

    def _take_off(self, plan: SchedulerOutput, pending: PendingTokens, began: float) -> None:
        progress = {each.sequence: each for each in self._scheduler.advance(plan)}
        self._tell_of_prompts(pending.told)
        for sequence in pending.sequences:
            sequence.in_flight = True
        self._flight = _InFlightStep(pending, progress, began)

    def _land(self) -> None:
        """Reads the tokens in flight; those of requests that ended meanwhile are nobody's."""
        flight, self._flight = self._flight, None
        if flight is None or not any(map(self._lives, flight.progress)):
            return
        pending = flight.pending
        with self._watchdog:
            result = pending.read()
        for sequence, finite in zip(pending.partial, result.finite, strict=True):
            if finite and self._lives(sequence):
                self._scheduler.confirm(flight.progress[sequence])
        for sequence, drawn in zip(pending.sequences, result.drawn, strict=True):
            if self._lives(sequence):
                self._take(flight.progress[sequence], drawn)
        now = monotonic()
        if pending.sequences:
            self._meter.count_step(max(flight.began, self._read_at), now, len(result.drawn))
        self._read_at = now

    def _clean_blocks(self) -> None:
        """Before a step reads or shares them. They stay on the list if that fails."""
        if self._scheduler.dirty:
            self._executor.scrub(self._scheduler.dirty)
            self._scheduler.dirty.clear()

    def _lives(self, sequence: TokenSequence) -> bool:
        return self._sequences.get(sequence.request.request_id) is sequence

    def _tell_of_prompts(self, told: Sequence[PromptLogprobs]) -> None:
        for stretch in told:
            self._sequences[stretch.request_id].prompt_told = stretch.begin + len(stretch.logprobs)
        self._outbox += told

    def _take(self, progress: ComputedBlocks, result: SampledToken | RowFailure) -> None:
        sequence = progress.sequence
        if isinstance(result, RowFailure):
            # What is not proven is shared with nobody. Of what is, nothing is taken from this request again.
            self._scheduler.pool.forget(sequence.blocks)
            self._fail(sequence, result.code, result.message)
            return
        self._scheduler.confirm(progress)
        logprobs = None if result.logprobs is None else (result.logprobs,)
        self._outbox.append(Tokens(sequence.request.request_id, (result.token_id,), logprobs))
        try:
            reason = sequence.append(result.token_id)
        except Exception as error:
            log.exception("request %s cannot be handled", sequence.request.request_id)
            self._fail(sequence, "engine_error", _describe(error))
            return
        if reason is not None:
            self._finish(sequence, reason)

    def _survive(self, plan: SchedulerOutput, error: Exception) -> None:
        """A step failed as a whole: none of it was computed."""
        if isinstance(error, OutOfMemory):
            self._relieve_memory(plan, error)
            return
        log.error("a step failed; its %d requests end", len(plan), exc_info=error)
        for chunk in plan:
            self._fail(chunk.sequence, "engine_error", _describe(error))

    def _relieve_memory(self, plan: SchedulerOutput, error: OutOfMemory) -> None:
        """Computes less at a time if the step had a prompt in it; else the last request waits until
        the others need less. A request fails that does not fit alone.
        """
        if plan[-1].count > 1 and self._scheduler.shrink():
            log.warning("out of memory: prompts will be computed in smaller chunks")
            return
        if self._scheduler.thin_out(plan):
            log.warning("out of memory: fewer requests will be computed at a time")
            return
        last = self._scheduler.last_of(plan)
        self._fail(last, "out_of_memory", str(error))

    # Ends

    def _finish(self, sequence: TokenSequence, reason: FinishReason) -> None:
        self._end(sequence, Finished(sequence.request.request_id, reason, sequence.usage, sequence.stop_hit))

    def _fail(self, sequence: TokenSequence, code: FailureCode, message: str) -> None:
        log.warning("request %s failed (%s): %s", sequence.request.request_id, code, message)
        self._end(sequence, Failed(sequence.request.request_id, code, message, sequence.usage))

    def _end(self, sequence: TokenSequence, last: Finished | Failed) -> None:
        self._scheduler.remove(sequence)
        self._deadlines.forget(sequence)
        del self._sequences[sequence.request.request_id]
        self._outbox.append(last)
        self._ended.append(last.request_id)

    def _hand_out(self) -> None:
        """Delivers the step's messages. A request leaves the ledger first: its id is free once told."""
        self._meter.tell(running=self._scheduler.running, kv_blocks_used=self._scheduler.pool.used)
        for request_id in self._ended:
            self._ledger.end(request_id)
        messages, self._outbox, self._ended = self._outbox, [], []
        if messages:
            self._call_deliver(messages)

    def _call_deliver(self, messages: Sequence[Outbound]) -> None:
        self.delivering = True
        try:
            self._deliver(messages)
        except Exception:
            # The listener's bug must not end everybody's requests; there is nobody else to tell.
            log.exception("the listener failed on %d messages", len(messages))
        finally:
            self.delivering = False


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
