"""The handle that the rest of the program holds: check, submit, cancel, stats, close.

Any thread; the work is the engine thread's (`loop`). Ignorant of torch until `load` is called, so that
the scripted engine, which is this handle over another executor, starts without it.
"""

import math
import threading
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace

from engine.config import EngineConfig, Limits
from engine.executor import Executor
from engine.loop import Close, Ledger, Loop
from engine.messages import Cancel, Capabilities, Deliver, Job, JobRefused, Sampling, Stats

SEED_RANGE = range(-(2**63), 2**64)


class ThreadedEngine:
    """Implements `messages.Engine` with one thread, which starts here and ends with `close`."""

    def __init__(self, executor: Executor, limits: Limits, deliver: Deliver) -> None:
        self._executor = executor
        self._limits = limits
        self._ledger = Ledger(limits.max_running + limits.max_waiting)
        self._loop = Loop(executor, limits, self._ledger, deliver)
        # A daemon: a program that ends without `close` must not hang on a running job.
        self._thread = threading.Thread(target=self._loop.run, name="holdfast-engine", daemon=True)
        self._thread.start()

    @property
    def capabilities(self) -> Capabilities:
        return self._executor.capabilities

    def check(self, job: Job) -> None:
        """Raises `JobRefused` if the job could never run. Pure; any thread."""
        capabilities = self.capabilities
        if not job.prompt:
            raise JobRefused("bad_token", "The prompt is empty.")
        if not _are_ids(job.prompt, capabilities.vocab_size):
            raise JobRefused("bad_token", f"Token ids must be 0 to {capabilities.vocab_size - 1}.")
        if job.max_tokens < 1:
            raise JobRefused("bad_limit", "max_tokens must be at least 1.")
        _check_sampling(job.sampling)
        total = len(job.prompt) + job.max_tokens
        if total > capabilities.context_length:
            raise JobRefused(
                "too_long",
                f"{len(job.prompt)} prompt tokens and {job.max_tokens} to generate are more than "
                f"the {capabilities.context_length} that the model can hold.",
            )
        if self._limits.blocks_for(total) > self._limits.kv_blocks:
            raise JobRefused(
                "too_long",
                f"{total} tokens are more than the KV cache can hold, "
                f"{self._limits.kv_blocks * self._limits.block_size}.",
            )

    def submit(self, job: Job) -> None:
        """Queues the job. Raises `JobRefused`. Any thread.

        `overloaded` is said when as many jobs as may run and may wait together have not ended.
        """
        self.check(job)
        self._ledger.accept(job)

    def cancel(self, job_id: str) -> None:
        """Asks for the job's end; idempotent. Any thread."""
        self._ledger.inbox.put(Cancel(job_id))

    def stats(self) -> Stats:
        """Any thread. `waiting` counts every accepted job that is in no step."""
        snapshot = self._loop.stats
        return replace(
            snapshot,
            waiting=max(0, len(self._ledger) - snapshot.running),
            alive=snapshot.alive and self._thread.is_alive(),
        )

    def close(self, *, drain: bool) -> None:
        """Ends the thread: after the accepted jobs (`drain`), or after cancelling them.

        Idempotent; a call without `drain` ends a drain that is under way. Returns when the thread has
        ended, unless it is called on that thread, by a listener.
        """
        self._ledger.close("The engine is closed.")
        self._ledger.inbox.put(Close(drain))
        self._executor.interrupt()
        if threading.current_thread() is not self._thread:
            self._thread.join()


def load(
    config: EngineConfig,
    deliver: Deliver,
    progress: Callable[[str], None] = lambda _line: None,
) -> ThreadedEngine:
    """Loads the model (seconds to minutes; `progress` gets a line for each stage) and starts on it.

    Raises `config.ModelRefused` for a model that would not be served rightly.
    """
    from engine.runner import ModelExecutor  # torch comes in here and nowhere above

    executor, limits = ModelExecutor.load(config, progress)
    return ThreadedEngine(executor, limits, deliver)


def _are_ids(token_ids: Sequence[int], vocab_size: int) -> bool:
    try:
        numbers = array("q", token_ids)
    except (TypeError, OverflowError):
        return False
    return min(numbers) >= 0 and max(numbers) < vocab_size


def _check_sampling(sampling: Sampling) -> None:
    # Written so that NaN, for which every comparison is false, is refused.
    if not 0 <= sampling.temperature < math.inf:
        raise JobRefused("bad_sampling", "temperature must be a number of at least 0.")
    if not 0 < sampling.top_p <= 1:
        raise JobRefused("bad_sampling", "top_p must be above 0 and at most 1.")
    if sampling.top_k < 0:
        raise JobRefused("bad_sampling", "top_k must be at least 0.")
    if sampling.seed not in SEED_RANGE:
        raise JobRefused("bad_sampling", "seed must fit into 64 bits.")
