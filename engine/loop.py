"""The engine thread: inbox -> schedule -> compute -> hand out, once a step.

Everything here but `Ledger` runs on the engine thread. Ignorant of models, of torch (that is the
executor's) and of who listens. What it promises: each job of the ledger gets exactly one `Finished` or
`Failed`, whatever goes wrong; trouble of one job stays that job's; the messages of a step are
delivered together.
"""

import logging
import queue
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.config import Limits
from engine.executor import Executor, OutOfMemory, RowFailure
from engine.messages import (
    Cancel,
    Deliver,
    Failed,
    FailureCode,
    Finished,
    FinishReason,
    Job,
    JobRefused,
    Outbound,
    Stats,
    Tokens,
    Usage,
)
from engine.scheduler import Plan, Scheduler
from engine.sequence import TokenSequence

log = logging.getLogger(__name__)

SWITCH_INTERVAL = 0.0005
"""Seconds a busy Python thread may keep the GIL from the engine thread, which gives it up at every
torch operation; Python's default of 5 ms makes steps up to three times as long beside such a thread."""

IDLE_CHECK_AFTER = 1.0
"""Seconds without work after which the engine checks its books."""


@dataclass(frozen=True, slots=True)
class Close:
    """Ends the thread: after the accepted jobs, or after cancelling them."""

    drain: bool


Inbound = Job | Cancel | Close


class Ledger:
    """The accepted jobs that have not ended, and the inbox they came through. Any thread."""

    def __init__(self, capacity: int) -> None:
        self.inbox: queue.SimpleQueue[Inbound] = queue.SimpleQueue()
        self._capacity = capacity
        self._jobs: dict[str, Job] = {}
        self._closed: str | None = None
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._jobs)

    def accept(self, job: Job) -> None:
        """Queues the job or raises `JobRefused`."""
        with self._lock:
            if self._closed is not None:
                raise JobRefused("closed", self._closed)
            if job.job_id in self._jobs:
                raise JobRefused("duplicate", f"Job {job.job_id} is already in the engine.")
            if len(self._jobs) >= self._capacity:
                raise JobRefused("overloaded", "The engine has as many jobs as it may hold.")
            self._jobs[job.job_id] = job
            self.inbox.put(job)

    def close(self, sentence: str) -> None:
        """Refuses every job from now on. The first sentence stays."""
        with self._lock:
            self._closed = self._closed or sentence

    def end(self, job_id: str) -> None:
        with self._lock:
            del self._jobs[job_id]

    def end_all(self) -> list[Job]:
        with self._lock:
            jobs = list(self._jobs.values())
            self._jobs.clear()
            return jobs


class Loop:
    """The thread's state. `run` is its body."""

    def __init__(self, executor: Executor, limits: Limits, ledger: Ledger, deliver: Deliver) -> None:
        self._executor = executor
        self._scheduler = Scheduler(limits)
        self._ledger = ledger
        self._deliver = deliver
        self._sequences: dict[str, TokenSequence] = {}
        self._outbox: list[Outbound] = []
        self._arrivals = 0
        self._steps = 0
        self._tokens = 0
        self._closing: Close | None = None
        self.stats = Stats(
            running=0,
            waiting=0,
            kv_blocks_used=0,
            kv_blocks_total=limits.kv_blocks,
            steps=0,
            tokens=0,
            alive=True,
        )
        """A snapshot that is replaced whole before each delivery."""

    def run(self) -> None:
        """The life of the engine thread. Never raises: an engine that dies says so to every job."""
        try:
            sys.setswitchinterval(min(SWITCH_INTERVAL, sys.getswitchinterval()))
            with self._executor.thread_context():
                self._work_until_closed()
            self._scheduler.check_integrity()
        except BaseException as error:
            log.exception("the engine died")
            self._die(error)
        self.stats = replace(self.stats, alive=False)

    def _work_until_closed(self) -> None:
        while not (self._closing and self._scheduler.idle):
            self._read_inbox()
            if not self._scheduler.idle:
                self._step()
            self._hand_out()

    # Inbox

    def _read_inbox(self) -> None:
        """Takes all that is there; waits for something only when there is nothing to compute."""
        if self._scheduler.idle and not self._closing:
            self._handle(self._wait())
        while True:
            try:
                message = self._ledger.inbox.get_nowait()
            except queue.Empty:
                return
            self._handle(message)

    def _wait(self) -> Inbound:
        try:
            return self._ledger.inbox.get(timeout=IDLE_CHECK_AFTER)
        except queue.Empty:
            self._scheduler.check_integrity()
        return self._ledger.inbox.get()

    def _handle(self, message: Inbound) -> None:
        match message:
            case Job():
                self._begin(message)
            case Cancel(job_id):
                if sequence := self._sequences.get(job_id):
                    self._finish(sequence, "cancelled")
            case Close(drain):
                self._closing = message
                if not drain:
                    for sequence in list(self._sequences.values()):
                        self._finish(sequence, "cancelled")

    def _begin(self, job: Job) -> None:
        self._arrivals += 1
        sequence = TokenSequence(job, self._arrivals)
        self._sequences[job.job_id] = sequence
        self._scheduler.add(sequence)
        try:
            # Planning needs the digests; a job for which there are none must not get so far.
            self._scheduler.prepare(sequence)
        except Exception as error:
            log.exception("job %s cannot be handled", sequence.job.job_id)
            self._fail(sequence, "engine_error", _describe(error))

    # A step

    def _step(self) -> None:
        plan = self._scheduler.plan()
        assert plan, "there are jobs, but none of them can move"
        try:
            drawn = self._executor.execute(plan)
        except OutOfMemory as error:
            self._relieve_memory(plan, error)
            return
        except Exception as error:
            log.exception("a step failed; its %d jobs end", len(plan))
            for chunk in plan:
                self._fail(chunk.sequence, "engine_error", _describe(error))
            return
        self._steps += 1
        self._scheduler.advance(plan)
        drawing = [chunk.sequence for chunk in plan if chunk.draws]
        for sequence, result in zip(drawing, drawn, strict=True):
            self._take(sequence, result)

    def _take(self, sequence: TokenSequence, result: int | RowFailure) -> None:
        if isinstance(result, RowFailure):
            self._discard_content(sequence)
            self._fail(sequence, result.code, result.message)
            return
        self._tokens += 1
        self._outbox.append(Tokens(sequence.job.job_id, (result,)))
        try:
            reason = sequence.append(result)
        except Exception as error:
            log.exception("job %s cannot be handled", sequence.job.job_id)
            self._fail(sequence, "engine_error", _describe(error))
            return
        if reason is not None:
            self._finish(sequence, reason)

    def _relieve_memory(self, plan: Plan, error: OutOfMemory) -> None:
        """Computes less at a time if the step had a prompt in it; else the newest job goes."""
        if plan[-1].count > 1 and self._scheduler.shrink():
            log.warning("out of memory: prompts will be computed in smaller chunks")
            return
        newest = max((chunk.sequence for chunk in plan), key=lambda sequence: sequence.arrival)
        self._fail(newest, "out_of_memory", str(error))

    def _discard_content(self, sequence: TokenSequence) -> None:
        """What this job wrote must reach no other job, neither by reuse nor as a rest in a block."""
        own = [block for block in sequence.blocks if self._scheduler.pool.holders(block) == 1]
        self._scheduler.pool.forget(sequence.blocks)
        self._executor.scrub(own)

    # Ends

    def _finish(self, sequence: TokenSequence, reason: FinishReason) -> None:
        self._end(sequence, Finished(sequence.job.job_id, reason, sequence.usage))

    def _fail(self, sequence: TokenSequence, code: FailureCode, message: str) -> None:
        log.warning("job %s failed (%s): %s", sequence.job.job_id, code, message)
        self._end(sequence, Failed(sequence.job.job_id, code, message, sequence.usage))

    def _end(self, sequence: TokenSequence, last: Finished | Failed) -> None:
        self._scheduler.remove(sequence)
        del self._sequences[sequence.job.job_id]
        self._outbox.append(last)

    def _hand_out(self) -> None:
        """Delivers the step's messages. A job leaves the ledger first: its id is free once told."""
        self.stats = replace(
            self.stats,
            running=self._scheduler.running,
            kv_blocks_used=self._scheduler.pool.used,
            steps=self._steps,
            tokens=self._tokens,
        )
        messages, self._outbox = self._outbox, []
        for message in messages:
            if not isinstance(message, Tokens):
                self._ledger.end(message.job_id)
        if messages:
            self._call_deliver(messages)

    def _call_deliver(self, messages: Sequence[Outbound]) -> None:
        try:
            self._deliver(messages)
        except Exception:
            # The listener's bug must not end everybody's jobs; there is nobody else to tell.
            log.exception("the listener failed on %d messages", len(messages))

    def _die(self, error: BaseException) -> None:
        """Tells every job at once, also those that are still in the inbox."""
        self._ledger.close("The engine died.")
        self.stats = replace(self.stats, alive=False, running=0)
        told = self._outbox  # what the last step gave before it broke
        for message in told:
            if not isinstance(message, Tokens):
                self._ledger.end(message.job_id)
        failures: list[Outbound] = []
        for job in self._ledger.end_all():
            sequence = self._sequences.get(job.job_id)
            usage = sequence.usage if sequence else Usage(prompt=len(job.prompt))
            failures.append(Failed(job.job_id, "engine_dead", _describe(error), usage))
        if told or failures:
            self._call_deliver([*told, *failures])


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
