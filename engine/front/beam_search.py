"""Beam search: `BeamSearch` scores one search's beams, `BeamRequests` computes them as one-token requests.

Each step submits a request for every running beam; the prefix cache computes their common prefix once.
Requests that differ only in `beams.rank` share a search while it runs. A later search, or one after a
restart, has the same results. It takes `width` places in the registry until its end. `submit` and `cancel`
run on any thread, `deliver` on the engine thread.
"""

import itertools
import secrets
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from heapq import nlargest
from typing import NamedTuple

from engine.front.request_registry import RequestRegistry
from engine.request import (
    Deliver,
    EngineRequest,
    Failed,
    Finished,
    FinishReason,
    Outbound,
    RequestRefused,
    SamplingParams,
    TokenLogprobs,
    Tokens,
    TokenUsage,
)
from engine.scheduling.block_pool import extend_chain
from engine.stats_snapshot import NOT_MEASURED, RequestTimes


@dataclass(frozen=True, slots=True)
class Beam:
    token_ids: tuple[int, ...] = ()
    """Stop token included."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    total: float = 0.0
    ended: bool = False
    origin: int = 0
    """Index, among the beams of the previous step, of the beam that it continues."""


class _Candidate(NamedTuple):
    total: float
    origin: int
    token_id: int
    logprob: float


class BeamSearch:
    """One search, as vLLM's `beam_search`.

    Each step reads the `2 * width` likeliest next tokens of every beam; beams with a stop token leave the
    search, and the best `width` of the others continue. A score is the sum of the tokens' logprobs divided by
    (number of prompt and output tokens) ** `length_penalty`.
    """

    def __init__(self, request: EngineRequest) -> None:
        """Beams that end before `request.min_tokens` are dropped."""
        assert request.beams is not None
        self.width = request.beams.width
        self.running = [Beam()]
        """Beams that go on, best first; none when the search is over."""
        self.best: list[Beam] = []
        """At most `width` beams that ended, best first."""
        self._request, self._length_penalty = request, request.beams.length_penalty
        self._steps = 0

    def advance(self, tables: Sequence[TokenLogprobs]) -> None:
        """Takes the likeliest next tokens of each of `running`, in order."""
        request, ends = self._request, self._request.ends
        candidates = [
            _Candidate(beam.total + logprob, origin, token_id, logprob)
            for origin, (beam, table) in enumerate(zip(self.running, tables, strict=True))
            for token_id, logprob in table.top[: 2 * self.width]
        ]

        def extended(each: _Candidate) -> Beam:
            beam, logprobs = self.running[each.origin], self.running[each.origin].logprobs
            if request.logprobs is not None:
                top = tables[each.origin].top[: request.logprobs]
                logprobs = (*logprobs, TokenLogprobs(each.logprob, top))
            token_ids = (*beam.token_ids, each.token_id)
            return Beam(token_ids, logprobs, each.total, each.token_id in ends, each.origin)

        if self._steps >= request.min_tokens:
            self._keep_best(extended(each) for each in candidates if each.token_id in ends)
        self._steps += 1
        # All of these have the same length, so that the likeliest have the best scores, whatever the penalty.
        going_on = (each for each in candidates if each.token_id not in ends)
        following = nlargest(self.width, going_on, key=lambda each: each.total)
        self.running = list(map(extended, following))
        if self._steps == request.max_tokens or self._is_decided():
            self._keep_best(self.running)
            self.running = []

    def score(self, beam: Beam) -> float:
        """The normalized score. A stop token counts in the sum and not in the length."""
        return self._normalized(beam.total, len(beam.token_ids) - beam.ended)

    def _keep_best(self, ended: Iterable[Beam]) -> None:
        self.best = sorted([*self.best, *ended], key=self.score, reverse=True)[: self.width]

    def _normalized(self, total: float, output_length: int) -> float:
        length = len(self._request.prompt) + output_length
        return float(total / length**self._length_penalty) if length else total

    def _is_decided(self) -> bool:
        """Whether no running beam can become one of the best any more: sums only fall."""
        if len(self.best) < self.width:
            return False
        worst = self.score(self.best[-1])
        longest = self._request.max_tokens if self._length_penalty > 0 else self._steps
        return all(self._normalized(beam.total, longest) <= worst for beam in self.running)


PREFIX = "beam/"
"""Begins the ids of the internal one-token requests, whose messages are not passed on."""


@dataclass(eq=False, slots=True)
class _SharedSearch:
    request: EngineRequest
    """The search key: see `_search_key`."""
    search: BeamSearch
    chains: list[list[bytes]] = field(default_factory=lambda: [[]])
    """For each running beam: digests of the full blocks of its prompt and output."""
    waiting: dict[str, EngineRequest] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    """By id of this step's one-token requests: the index of the beam."""
    tables: dict[int, TokenLogprobs] = field(default_factory=dict)
    """By index of the beam: the logprobs that this step has returned so far."""
    cached: int | None = None
    """Prompt tokens that the first step found in the prefix cache."""
    times: RequestTimes = NOT_MEASURED
    cancelled: bool = False


class BeamRequests:
    """Runs all searches over ordinary requests. Each request gets exactly one `Finished` or `Failed`."""

    def __init__(
        self,
        registry: RequestRegistry,
        submit: Callable[[EngineRequest, list[bytes]], None],
        cancel: Callable[[str], None],
        deliver: Deliver,
        block_size: int,
    ) -> None:
        """`submit` accepts a valid request that has a place in `registry`, with the digests of its prompt's
        full blocks, or raises `RequestRefused`; `cancel` is the engine's.
        """
        self._registry = registry
        self._submit = submit
        self._block_size = block_size
        self._cancel = cancel
        self._deliver = deliver
        self._lock = threading.RLock()
        self._searches: dict[EngineRequest, _SharedSearch] = {}
        self._by_step: dict[str, _SharedSearch] = {}
        # Random: processes that share servers end each other's calls of the same id there.
        prefix = f"{PREFIX}{secrets.token_hex(6)}-"
        self._ids = (f"{prefix}{number}" for number in itertools.count())
        self._cancelled: list[Outbound] = []
        """Last messages of cancelled requests whose search continues; delivered with the next step's."""

    def submit(self, request: EngineRequest) -> None:
        """Joins a running search with the same key, or begins one. Raises `RequestRefused`. Any thread."""
        common = _search_key(request)
        with self._lock:
            shared = self._searches.get(common)
            if shared is None:
                shared = self._begin(common)
                self._searches[common] = shared
            elif request.request_id in shared.waiting:
                raise RequestRefused("duplicate", f"Request {request.request_id} is already in the engine.")
            shared.waiting[request.request_id] = request

    def _begin(self, common: EngineRequest) -> _SharedSearch:
        """Reserves the places and submits the first step. Raises `RequestRefused`."""
        shared = _SharedSearch(common, BeamSearch(common))
        self._registry.reserve(common.fairness_key, shared.search.width)
        try:
            self._begin_step(shared)
        except BaseException:
            self._registry.release(common.fairness_key, shared.search.width, shared.steps)
            raise
        return shared

    def cancel(self, request_id: str) -> bool:
        """Cancels the request; False if it does not wait for a search. Any thread."""
        with self._lock:
            shared = next(
                (shared for shared in self._searches.values() if request_id in shared.waiting), None
            )
            if shared is None:
                return False
            if len(shared.waiting) > 1:
                request = shared.waiting.pop(request_id)
                self._cancelled.append(Finished(request_id, "cancelled", _usage(shared, request)))
                return True
            shared.cancelled = True
            del self._searches[shared.request]
            for step in shared.steps:
                self._cancel(step)
            return True

    def deliver(self, messages: Sequence[Outbound]) -> None:
        """Handles a step's messages of one-token requests and passes the others on. Engine thread."""
        with self._lock:
            outbound, self._cancelled = self._cancelled, []
            for message in messages:
                if message.request_id.startswith(PREFIX):
                    outbound += self._handle_step_message(message)
                else:
                    outbound.append(message)
        if outbound:
            self._deliver(outbound)

    def _handle_step_message(self, message: Outbound) -> list[Outbound]:
        shared = self._by_step.get(message.request_id)
        if shared is None:
            return []
        match message:
            case Tokens(_, _, (table, *_)):
                shared.tables[shared.steps[message.request_id]] = table
            case Finished(_, "cancelled"):
                return self._end_cancelled(shared)
            case Finished():
                del self._by_step[message.request_id]
                if shared.cached is None:
                    shared.cached, shared.times = message.usage.cached, message.times
                if len(shared.tables) == len(shared.steps):
                    return self._advance(shared)
            case Failed(_, code, text):
                return self._end(shared, lambda each, usage: [Failed(each.request_id, code, text, usage)])
        return []

    def _advance(self, shared: _SharedSearch) -> list[Outbound]:
        if shared.cancelled:
            return self._end_cancelled(shared)
        shared.search.advance([shared.tables[index] for index in range(len(shared.tables))])
        if not shared.search.running:
            return self._end(shared, lambda request, usage: _final_messages(shared, request, usage))
        try:
            self._begin_step(shared)
        except RequestRefused:  # the engine is closed: the step's places are reserved and its ids are new
            return self._end_cancelled(shared)
        return []

    def _begin_step(self, shared: _SharedSearch) -> None:
        """Submits a request for each running beam; all or none. Raises `RequestRefused`.

        Runs on the engine thread between two steps, so only new blocks are hashed.
        """
        shared.steps, shared.tables = {}, {}
        chains: list[list[bytes]] = []
        try:
            for index, beam in enumerate(shared.search.running):
                step = next(self._ids)
                request, chain = _step_request(shared, beam, step), list(shared.chains[beam.origin])
                blocks = len(request.prompt) // self._block_size
                extend_chain(chain, request, request.prompt, blocks, self._block_size)
                chains.append(chain)
                self._submit(request, chain)
                shared.steps[step] = index
                self._by_step[step] = shared
            shared.chains = chains
        except RequestRefused:
            self._forget_steps(shared)
            raise

    def _end_cancelled(self, shared: _SharedSearch) -> list[Outbound]:
        return self._end(shared, lambda each, usage: [Finished(each.request_id, "cancelled", usage)])

    def _end(
        self, shared: _SharedSearch, last: Callable[[EngineRequest, TokenUsage], list[Outbound]]
    ) -> list[Outbound]:
        """Removes the search and frees its places; returns the last messages of all its requests."""
        self._forget_steps(shared)
        # Of a cancelled search, an equal request that came later has the entry.
        if self._searches.get(shared.request) is shared:
            del self._searches[shared.request]
        self._registry.release(shared.request.fairness_key, shared.search.width, shared.steps)
        requests = shared.waiting.values()
        return [message for each in requests for message in last(each, _usage(shared, each))]

    def _forget_steps(self, shared: _SharedSearch) -> None:
        for step in shared.steps:
            if self._by_step.pop(step, None) is not None:
                self._cancel(step)


def _search_key(request: EngineRequest) -> EngineRequest:
    """The request without the fields in which requests of one search may differ."""
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


def _step_request(shared: _SharedSearch, beam: Beam, request_id: str) -> EngineRequest:
    """A one-token request whose top logprobs are the beam's candidates; its sampled token is not used."""
    request = shared.request
    return EngineRequest(
        request_id=request_id,
        prompt=(*request.prompt, *beam.token_ids),
        max_tokens=1,
        sampling=SamplingParams(seed=0, temperature=0.0),
        logprobs=max(2 * shared.search.width, request.logprobs or 0),
        adapter=request.adapter,
        cache_salt=request.cache_salt,
        images=request.images,
        priority=request.priority,
        fairness_key=request.fairness_key,
    )


def _final_messages(shared: _SharedSearch, request: EngineRequest, usage: TokenUsage) -> list[Outbound]:
    """The messages with the result of the request's rank, without its earlier output."""
    assert request.beams is not None
    best = shared.search.best
    if request.beams.rank >= len(best):
        text = f"The search found {len(best)} outputs, not {request.beams.width}."
        return [Failed(request.request_id, "engine_error", text, usage)]
    beam, offset = best[request.beams.rank], request.output_offset
    if beam.token_ids[:offset] != request.prompt[len(request.prompt) - offset :]:
        text = "The search came to another output than before."
        return [Failed(request.request_id, "engine_error", text, usage)]
    outbound: list[Outbound] = []
    if rest := beam.token_ids[offset:]:
        logprobs = None if request.logprobs is None else beam.logprobs[offset:]
        outbound.append(Tokens(request.request_id, rest, logprobs))
    reason: FinishReason = "stop" if beam.ended else "length"
    usage = replace(usage, output=len(rest))
    return [*outbound, Finished(request.request_id, reason, usage, times=shared.times)]


def _usage(shared: _SharedSearch, request: EngineRequest) -> TokenUsage:
    return TokenUsage(prompt=len(request.prompt), cached=min(shared.cached or 0, len(request.prompt)))
