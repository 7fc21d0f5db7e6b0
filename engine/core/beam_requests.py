"""Requests that ask for beams: each step of a search is a request of one token for every beam that goes on.

What the beams have in common is computed once, as the prefix cache has it. Requests that ask for the
outputs of one search, each for another of them, share it while it runs; a search depends on nothing but
the request, so one that comes later, or after a restart, finds the same. Called by any thread, and by the
engine's with the messages of a step.
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
"""Of the ids of the requests of one token, which nobody else is told of."""


@dataclass(eq=False, slots=True)
class _Search:
    request: EngineRequest
    """What all that wait for it have in common."""
    prompt: tuple[int, ...]
    """Without earlier output."""
    due: float | None
    search: BeamSearch
    chains: list[list[bytes]]
    """For each beam that runs: the digests of the full blocks of its prompt and output."""
    waiting: dict[str, EngineRequest] = field(default_factory=dict)
    """Requests by their ids."""
    steps: dict[str, int] = field(default_factory=dict)
    """Requests of this step, with the place of their beam."""
    tables: dict[int, TokenLogprobs] = field(default_factory=dict)
    """What this step has given so far, by the place of the beam."""
    cached: int | None = None
    """Tokens of the prompt that the first step found in the cache."""
    cancelled: bool = False
    """Nobody wants it any more."""


class BeamRequests:
    """Runs searches with an engine's requests. Gives every request exactly one `Finished` or `Failed`."""

    def __init__(
        self,
        submit: Callable[[EngineRequest, list[bytes]], None],
        cancel: Callable[[str], None],
        deliver: Deliver,
        block_size: int,
    ) -> None:
        """`submit` takes a request that has been checked, with the digests of the full blocks of its
        prompt, and raises `RequestRefused` if there is no place for it; `cancel` is the engine's.
        """
        self._submit = submit
        self._block_size = block_size
        self._cancel = cancel
        self._deliver = deliver
        self._lock = threading.RLock()
        self._searches: dict[EngineRequest, _Search] = {}
        """By what their requests have in common."""
        self._by_step: dict[str, _Search] = {}
        self._numbers = itertools.count()
        self._cancelled: list[Outbound] = []
        """Last messages of requests whose search goes on for others; delivered with the next step's."""

    def submit(self, request: EngineRequest) -> None:
        """Joins the search of such requests, or begins it. Raises `RequestRefused`. Any thread."""
        common = _common(request)
        with self._lock:
            found = self._searches.get(common)
            if found is None:
                found = _begun(common)
                self._begin_step(found)
                self._searches[common] = found
            elif request.request_id in found.waiting:
                raise RequestRefused("duplicate", f"Request {request.request_id} is already in the engine.")
            found.waiting[request.request_id] = request

    def cancel(self, request_id: str) -> bool:
        """Asks for the request's end; False if it is none of these. Any thread."""
        with self._lock:
            found = next((one for one in self._searches.values() if request_id in one.waiting), None)
            if found is None:
                return False
            if len(found.waiting) > 1:
                request = found.waiting.pop(request_id)
                self._cancelled.append(Finished(request_id, "cancelled", _usage(found, request)))
                return True
            found.cancelled = True
            del self._searches[found.request]
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
                    if message.request_id.startswith(PREFIX):
                        told += self._take(message)
                    else:
                        told.append(message)
        if told:
            self._deliver(told)

    def _take(self, message: Outbound) -> list[Outbound]:
        found = self._by_step.get(message.request_id)
        if found is None:
            return []
        match message:
            case Tokens(_, _, (table, *_)):
                found.tables[found.steps[message.request_id]] = table
            case Finished(_, "cancelled"):
                return self._end_cancelled(found)
            case Finished():
                del self._by_step[message.request_id]
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
            return self._end(found, lambda request: _ended(found, request))
        try:
            self._begin_step(found)
        except RequestRefused as refused:
            if refused.reason == "closed":
                return self._end_cancelled(found)
            return self._fail(found, "overloaded", str(refused))
        return []

    def _begin_step(self, found: _Search) -> None:
        """Submits a request for each beam that runs. Raises JobRefused; then none of them is left.

        Only what is new is hashed: the engine's thread does this between two steps.
        """
        found.steps, found.tables = {}, {}
        chains: list[list[bytes]] = []
        try:
            for place, beam in enumerate(found.search.running):
                step = f"{PREFIX}{next(self._numbers)}"
                request, chain = _step_of(found, beam, step), list(found.chains[beam.origin])
                size = self._block_size
                extend_chain(
                    chain,
                    request.cache_salt,
                    request.prompt,
                    len(request.prompt) // size,
                    size,
                    request.adapter,
                )
                chains.append(chain)
                self._submit(request, chain)
                found.steps[step] = place
                self._by_step[step] = found
            found.chains = chains
        except RequestRefused:
            self._forget_steps(found)
            raise

    def _fail(self, found: _Search, code: FailureCode, why: str) -> list[Outbound]:
        return self._end(
            found, lambda request: [Failed(request.request_id, code, why, _usage(found, request))]
        )

    def _end_cancelled(self, found: _Search) -> list[Outbound]:
        return self._end(
            found, lambda request: [Finished(request.request_id, "cancelled", _usage(found, request))]
        )

    def _end(self, found: _Search, last: Callable[[EngineRequest], list[Outbound]]) -> list[Outbound]:
        """The last messages of all that wait for a search."""
        self._forget_steps(found)
        self._searches.pop(found.request, None)
        return [message for request in found.waiting.values() for message in last(request)]

    def _forget_steps(self, found: _Search) -> None:
        for step in found.steps:
            if self._by_step.pop(step, None) is not None:
                self._cancel(step)


def _common(request: EngineRequest) -> EngineRequest:
    """The request without what differs among those that share a search."""
    assert request.beams is not None
    offset = request.output_offset
    return replace(
        request,
        request_id="",
        prompt=request.prompt[: len(request.prompt) - offset],
        max_tokens=request.max_tokens + offset,
        output_offset=0,
        beams=replace(request.beams, rank=0),
        sampling=SamplingParams(seed=0),
    )


def _begun(request: EngineRequest) -> _Search:
    assert request.beams is not None
    search = BeamSearch(
        width=request.beams.width,
        length_penalty=request.beams.length_penalty,
        prompt_length=len(request.prompt),
        max_tokens=request.max_tokens,
        min_tokens=request.min_tokens,
        ends=request.stop_token_ids | (frozenset() if request.ignore_eos else request.stop_ids),
        logprobs=request.logprobs,
    )
    due = None if request.deadline_seconds is None else monotonic() + request.deadline_seconds
    return _Search(request, request.prompt, due, search, [[]])


def _step_of(found: _Search, beam: Beam, request_id: str) -> EngineRequest:
    """The request that tells what may follow a beam. Its own token is of no use: the table has it."""
    request = found.request
    return EngineRequest(
        request_id=request_id,
        prompt=(*found.prompt, *beam.token_ids),
        max_tokens=1,
        sampling=SamplingParams(seed=0, temperature=0.0),
        logprobs=max(found.search.seen, request.logprobs or 0),
        adapter=request.adapter,
        cache_salt=request.cache_salt,
        priority=request.priority,
        share=request.share,
        deadline_seconds=None if found.due is None else max(found.due - monotonic(), 0.001),
    )


def _ended(found: _Search, request: EngineRequest) -> list[Outbound]:
    """The output that a request asked for, but for what it had before."""
    assert request.beams is not None
    best = found.search.best
    if request.beams.rank >= len(best):
        why = f"The search found {len(best)} outputs, not {request.beams.width}."
        return [Failed(request.request_id, "engine_error", why, _usage(found, request))]
    beam, offset = best[request.beams.rank], request.output_offset
    if beam.token_ids[:offset] != request.prompt[len(request.prompt) - offset :]:
        why = "The search came to another output than before."
        return [Failed(request.request_id, "engine_error", why, _usage(found, request))]
    told: list[Outbound] = []
    if rest := beam.token_ids[offset:]:
        logprobs = None if request.logprobs is None else beam.logprobs[offset:]
        told.append(Tokens(request.request_id, rest, logprobs))
    usage = replace(_usage(found, request), output=len(rest))
    return [*told, Finished(request.request_id, "stop" if beam.ended else "length", usage)]


def _usage(found: _Search, request: EngineRequest) -> Usage:
    return Usage(prompt=len(request.prompt), cached=min(found.cached or 0, len(request.prompt)))
