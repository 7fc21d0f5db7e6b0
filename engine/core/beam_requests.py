"""Jobs that ask for beams: each step of a search is a job of one token for every beam that goes on.

What the beams have in common is computed once, as the prefix cache has it. Jobs that ask for the outputs of
one search, each for another of them, share it while it runs; a search depends on nothing but the job, so one
that comes later, or after a restart, finds the same. Called by any thread, and by the engine's with the
messages of a step.
"""

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic

from engine.request import (
    Deliver,
    EngineRequest,
    Failed,
    FailureCode,
    Finished,
    Outbound,
    RequestRefused,
    SamplingParams,
    TokenLogprobs,
    Tokens,
    Usage,
)
from engine.sampling.beam_search import Beam, BeamSearch
from engine.scheduling.block_pool import extend_chain

PREFIX = "beam/"
"""Of the ids of the jobs of one token, which nobody else is told of."""


@dataclass(eq=False, slots=True)
class _Search:
    job: EngineRequest
    """What all that wait for it have in common."""
    prompt: tuple[int, ...]
    """Without earlier output."""
    due: float | None
    search: BeamSearch
    chains: list[list[bytes]]
    """For each beam that runs: the digests of the full blocks of its prompt and output."""
    waiting: dict[str, EngineRequest] = field(default_factory=dict)
    """Jobs by their ids."""
    steps: dict[str, int] = field(default_factory=dict)
    """Jobs of this step, with the place of their beam."""
    tables: dict[int, TokenLogprobs] = field(default_factory=dict)
    """What this step has given so far, by the place of the beam."""
    cached: int | None = None
    """Tokens of the prompt that the first step found in the cache."""
    cancelled: bool = False
    """Nobody wants it any more."""


class BeamRequests:
    """Runs searches with an engine's jobs. Gives every job exactly one `Finished` or `Failed`."""

    def __init__(
        self,
        submit: Callable[[EngineRequest, list[bytes]], None],
        cancel: Callable[[str], None],
        deliver: Deliver,
        block_size: int,
    ) -> None:
        """`submit` takes a job that need not be checked any more, with the digests of the full blocks of its
        prompt, and raises `RequestRefused` if there is no place for it; `cancel` is the engine's.
        """
        self._submit = submit
        self._block_size = block_size
        self._cancel = cancel
        self._deliver = deliver
        self._lock = threading.RLock()
        self._searches: dict[EngineRequest, _Search] = {}
        """By what their jobs have in common."""
        self._by_step: dict[str, _Search] = {}
        self._numbers = itertools.count()
        self._cancelled: list[Outbound] = []
        """Last messages of jobs whose search goes on for others; delivered with the next step's."""

    def submit(self, job: EngineRequest) -> None:
        """Joins the search of such jobs, or begins it. Raises `RequestRefused`. Any thread."""
        common = _common(job)
        with self._lock:
            found = self._searches.get(common)
            if found is None:
                found = _begun(common)
                self._begin_step(found)
                self._searches[common] = found
            elif job.job_id in found.waiting:
                raise RequestRefused("duplicate", f"Job {job.job_id} is already in the engine.")
            found.waiting[job.job_id] = job

    def cancel(self, job_id: str) -> bool:
        """Asks for the job's end; False if it is none of these. Any thread."""
        with self._lock:
            found = next((one for one in self._searches.values() if job_id in one.waiting), None)
            if found is None:
                return False
            if len(found.waiting) > 1:
                job = found.waiting.pop(job_id)
                self._cancelled.append(Finished(job_id, "cancelled", _usage(found, job)))
                return True
            found.cancelled = True
            del self._searches[found.job]
            for step in found.steps:
                self._cancel(step)
            return True

    def deliver(self, messages: Sequence[Outbound]) -> None:
        """Takes the messages of a step, hands on those that are for others, and goes on. Engine thread."""
        told: list[Outbound] = []
        with self._lock:
            if not self._by_step and not self._cancelled:
                told += messages
            else:
                told += self._cancelled
                self._cancelled = []
                for message in messages:
                    if message.job_id.startswith(PREFIX):
                        told += self._take(message)
                    else:
                        told.append(message)
        if told:
            self._deliver(told)

    def _take(self, message: Outbound) -> list[Outbound]:
        found = self._by_step.get(message.job_id)
        if found is None:
            return []
        match message:
            case Tokens(_, _, (table, *_)):
                found.tables[found.steps[message.job_id]] = table
            case Finished(_, "cancelled"):
                return self._end_cancelled(found)
            case Finished():
                del self._by_step[message.job_id]
                if found.cached is None:
                    found.cached = message.usage.cached
                if len(found.tables) == len(found.steps):
                    return self._advance(found)
            case Failed(_, code, why):
                return self._fail(found, code, why)
        return []

    def _advance(self, found: _Search) -> list[Outbound]:
        if found.cancelled:
            return self._end_cancelled(found)
        found.search.advance([found.tables[place] for place in range(len(found.tables))])
        if not found.search.running:
            return self._end(found, lambda job: _ended(found, job))
        try:
            self._begin_step(found)
        except RequestRefused as refused:
            if refused.reason == "closed":
                return self._end_cancelled(found)
            return self._fail(found, "overloaded", str(refused))
        return []

    def _begin_step(self, found: _Search) -> None:
        """Submits a job for each beam that runs. Raises JobRefused; then none of them is left.

        Only what is new is hashed: the engine's thread does this between two steps.
        """
        found.steps, found.tables = {}, {}
        chains: list[list[bytes]] = []
        try:
            for place, beam in enumerate(found.search.running):
                step = f"{PREFIX}{next(self._numbers)}"
                job, chain = _step_of(found, beam, step), list(found.chains[beam.origin])
                size = self._block_size
                extend_chain(chain, job.cache_salt, job.prompt, len(job.prompt) // size, size, job.adapter)
                chains.append(chain)
                self._submit(job, chain)
                found.steps[step] = place
                self._by_step[step] = found
            found.chains = chains
        except RequestRefused:
            self._forget_steps(found)
            raise

    def _fail(self, found: _Search, code: FailureCode, why: str) -> list[Outbound]:
        return self._end(found, lambda job: [Failed(job.job_id, code, why, _usage(found, job))])

    def _end_cancelled(self, found: _Search) -> list[Outbound]:
        return self._end(found, lambda job: [Finished(job.job_id, "cancelled", _usage(found, job))])

    def _end(self, found: _Search, last: Callable[[EngineRequest], list[Outbound]]) -> list[Outbound]:
        """The last messages of all that wait for a search."""
        self._forget_steps(found)
        self._searches.pop(found.job, None)
        return [message for job in found.waiting.values() for message in last(job)]

    def _forget_steps(self, found: _Search) -> None:
        for step in found.steps:
            if self._by_step.pop(step, None) is not None:
                self._cancel(step)


def _common(job: EngineRequest) -> EngineRequest:
    """The job without what differs among those that share a search."""
    assert job.beams is not None
    offset = job.output_offset
    return replace(
        job,
        job_id="",
        prompt=job.prompt[: len(job.prompt) - offset],
        max_tokens=job.max_tokens + offset,
        output_offset=0,
        beams=replace(job.beams, rank=0),
        sampling=SamplingParams(seed=0),
    )


def _begun(job: EngineRequest) -> _Search:
    assert job.beams is not None
    search = BeamSearch(
        width=job.beams.width,
        length_penalty=job.beams.length_penalty,
        prompt_length=len(job.prompt),
        max_tokens=job.max_tokens,
        min_tokens=job.min_tokens,
        ends=job.stop_token_ids | (frozenset() if job.ignore_eos else job.stop_ids),
        logprobs=job.logprobs,
    )
    due = None if job.deadline_seconds is None else monotonic() + job.deadline_seconds
    return _Search(job, job.prompt, due, search, [[]])


def _step_of(found: _Search, beam: Beam, job_id: str) -> EngineRequest:
    """The job that tells what may follow a beam. Its own token is of no use: the table has it."""
    job = found.job
    return EngineRequest(
        job_id=job_id,
        prompt=(*found.prompt, *beam.token_ids),
        max_tokens=1,
        sampling=SamplingParams(seed=0, temperature=0.0),
        logprobs=max(found.search.seen, job.logprobs or 0),
        adapter=job.adapter,
        cache_salt=job.cache_salt,
        priority=job.priority,
        share=job.share,
        deadline_seconds=None if found.due is None else max(found.due - monotonic(), 0.001),
    )


def _ended(found: _Search, job: EngineRequest) -> list[Outbound]:
    """The output that a job asked for, but for what it had before."""
    assert job.beams is not None
    best = found.search.best
    if job.beams.rank >= len(best):
        why = f"The search found {len(best)} outputs, not {job.beams.width}."
        return [Failed(job.job_id, "engine_error", why, _usage(found, job))]
    beam, offset = best[job.beams.rank], job.output_offset
    if beam.token_ids[:offset] != job.prompt[len(job.prompt) - offset :]:
        why = "The search came to another output than before."
        return [Failed(job.job_id, "engine_error", why, _usage(found, job))]
    told: list[Outbound] = []
    if rest := beam.token_ids[offset:]:
        logprobs = None if job.logprobs is None else beam.logprobs[offset:]
        told.append(Tokens(job.job_id, rest, logprobs))
    usage = replace(_usage(found, job), output=len(rest))
    return [*told, Finished(job.job_id, "stop" if beam.ended else "length", usage)]


def _usage(found: _Search, job: EngineRequest) -> Usage:
    return Usage(prompt=len(job.prompt), cached=min(found.cached or 0, len(job.prompt)))
