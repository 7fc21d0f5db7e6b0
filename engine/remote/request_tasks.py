"""`RequestLoop`: runs requests on engine servers, a task each, and delivers their messages. Event loop.

A task makes calls until its `Generation` is done; after a fault the next call goes to another server. Tokens
are handled where they arrive, in the callbacks of connections (`http_client`), while the task sleeps.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import inf
from time import monotonic

from engine.front.request_metrics import RequestMetrics
from engine.front.request_registry import InboxReader, RequestRegistry
from engine.remote.engine_protocol import AnswerChunk, CallFault, GenerateCall
from engine.remote.fleet import Fleet
from engine.remote.http_client import EngineClient
from engine.remote.request_output import Generation, call_ids
from engine.remote.server_choice import EngineServer
from engine.request import CancelReason, Deliver, Failed, Finished, Tokens, describe
from engine.scheduling.sequence import TokenSequence
from engine.scheduling.waiting_queue import FairWaitingQueue

log = logging.getLogger(__name__)

DELIVERY_SECONDS = 0.002
"""Messages are delivered at most once in this interval: each delivery wakes the thread that commits them."""

RECENT_SECONDS = 10.0
"""Window of the rate of tokens, in intervals of `BUCKET_SECONDS`."""
BUCKET_SECONDS = 0.5
IDLE_SECONDS = 1.0
"""After this time without a token the rate is 0."""

MAX_FAILURES = 4
"""Faults of servers without a new token between them, after which a request fails: it may be the cause."""


@dataclass(slots=True)
class Attempts:
    """The calls of one request since its last token, and when it gives up."""

    since: float
    """Time when the request last had a server or began to look for one. The wait for a server is counted from
    here, so that a 503 does not begin it again."""
    length: int
    """Number of the request's tokens, the prompt included, after the last call."""
    avoid: set[str] = field(default_factory=set)
    """URLs of servers that failed or turned it away."""
    failures: int = 0
    turned_away: CallFault | None = None

    def count(self, url: str, fault: CallFault | None, length: int, now: float) -> None:
        """A call ended, with this fault if it failed; the request has `length` tokens."""
        overloaded = fault is not None and fault.kind == "overloaded"
        if length > self.length:
            self.length, self.failures = length, 0
            self.avoid.clear()
            self.since = now
        elif not overloaded:
            self.since = now
        self.turned_away = fault if overloaded else None
        if fault is not None:
            self.avoid.add(url)
            self.failures += fault.kind == "failed"

    def trouble(self, fault: CallFault | None) -> str | None:
        """Why the request fails after a call that ended so; None if it is tried again."""
        if fault is not None and fault.kind == "refused":
            return str(fault)
        if self.failures >= MAX_FAILURES:
            return f"{self.failures} engines failed in turn; at last: {fault}"
        return None

    def outage(self, outage: CallFault) -> str:
        """Why the request fails after it has waited too long for a server."""
        return str(outage) if self.turned_away is None else f"{outage}; at last: {self.turned_away}"


class RemoteMetrics:
    """Counts tokens; blocks and steps are the servers' own. Any thread reads."""

    def __init__(self, context_length: int = 0) -> None:
        self.requests = RequestMetrics(context_length)
        self.tokens = 0
        self.prompt_tokens = 0
        """Of requests that have ended, as the next."""
        self.cached_tokens = 0
        self._buckets: deque[tuple[float, int]] = deque(maxlen=int(RECENT_SECONDS / BUCKET_SECONDS))
        """(begin, tokens) of intervals of `BUCKET_SECONDS` in which tokens came."""

    def count_tokens(self, count: int, now: float) -> None:
        self.tokens += count
        if self._buckets and now - self._buckets[-1][0] < BUCKET_SECONDS:
            begin, tokens = self._buckets[-1]
            self._buckets[-1] = (begin, tokens + count)
        else:
            self._buckets.append((now, count))

    @property
    def tokens_per_second(self) -> float:
        now = monotonic()
        recent = [bucket for bucket in list(self._buckets) if now - bucket[0] < RECENT_SECONDS]
        if not recent or now - recent[-1][0] > IDLE_SECONDS:
            return 0.0
        return sum(tokens for _, tokens in recent) / (now - recent[0][0])


class RequestLoop(InboxReader):
    """All methods run on the event loop, except `fail_all` after its end."""

    def __init__(
        self,
        registry: RequestRegistry,
        fleet: Fleet,
        client: EngineClient,
        new_generation: Callable[[TokenSequence], Generation],
        max_running: int,
        deliver: Deliver,
        metrics: RemoteMetrics,
        delivery_seconds: float = DELIVERY_SECONDS,
    ) -> None:
        super().__init__(registry, deliver, metrics.requests)
        self._delivery_seconds = delivery_seconds
        self._fleet = fleet
        self._client = client
        self._new_generation = new_generation
        self._max_running = max_running
        self._metrics = metrics
        self._waiting = FairWaitingQueue()
        self._generations: dict[str, Generation] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._idle = asyncio.Event()
        self._tokens_at: dict[str, int] = {}
        """Index in the outbox of a request's `Tokens`, to which further tokens are added, by request id."""
        self._undelivered_tokens = 0
        self._delivery: asyncio.Handle | None = None
        self._delivered_at = -inf

    @property
    def running(self) -> int:
        """Requests that a server has, or that wait for one after a fault."""
        return len(self._tasks)

    async def run(self) -> None:
        self.read_inbox()
        await self._idle.wait()
        self._deliver_now()

    def read_inbox(self) -> None:
        inbox = self._registry.inbox
        while not inbox.empty():
            self._handle(inbox.get())
        self._client.set_paused(self._paused)
        if self._paused:
            self._resumed.clear()
        else:
            self._resumed.set()
            self._start_waiting()
        if self._outbox:
            self._deliver_soon()
        self._check_idle()

    # Requests

    def _live_sequences(self) -> dict[str, TokenSequence]:
        return {request_id: each.sequence for request_id, each in self._generations.items()}

    def _begin(self, sequence: TokenSequence) -> None:
        self._generations[sequence.request.request_id] = self._new_generation(sequence)
        self._waiting.push(sequence)

    def _start_waiting(self) -> None:
        while len(self._waiting) and len(self._tasks) < self._max_running:
            sequence = self._waiting.peek()
            self._waiting.pop(sequence, len(sequence.request.prompt))
            request_id = sequence.request.request_id
            generation = self._generations[request_id]
            task = asyncio.get_running_loop().create_task(self._serve(generation))
            # Not the task's own last act: one that is cancelled before it starts has none.
            task.add_done_callback(partial(self._end, generation))
            self._tasks[request_id] = task

    def _cancel(self, request_id: str, reason: CancelReason) -> None:
        generation = self._generations.get(request_id)
        if generation is None:
            return
        generation.finish(reason)
        if (task := self._tasks.get(request_id)) is None:
            self._end(generation)
        else:
            task.cancel()  # and so its call

    async def _serve(self, generation: Generation) -> None:
        try:
            await self._generate(generation)
        except asyncio.CancelledError:
            generation.finish()
        except Exception as error:
            log.exception("request %s cannot be handled", generation.sequence.request.request_id)
            generation.fail("engine_error", describe(error))

    def _end(self, generation: Generation, task: asyncio.Task[None] | None = None) -> None:
        """The request is done: it waited, or its task has ended."""
        request_id = generation.sequence.request.request_id
        # First, because it charges the last tokens: later, that would make an account that nobody removes.
        self._collect(generation, ended=True)
        self._waiting.remove(generation.sequence, waiting=task is None)
        del self._generations[request_id]
        self._tasks.pop(request_id, None)
        self._ended.append(request_id)
        self._metrics.prompt_tokens += generation.sequence.usage.prompt
        self._metrics.cached_tokens += generation.sequence.usage.cached
        self._deliver_soon()
        if self._resumed.is_set():
            self._start_waiting()
        self._check_idle()

    def _check_idle(self) -> None:
        if self._closing is not None and not self._generations:
            self._idle.set()

    # Calls

    async def _generate(self, generation: Generation) -> None:
        sequence = generation.sequence
        request = sequence.request
        if request.output_offset:
            await self._fleet.end_former_calls(call_ids(request.request_id))
        attempts = Attempts(since=monotonic(), length=len(sequence.tokens))
        while (call := self._next_call(generation)) is not None:
            if not self._resumed.is_set():
                await self._resumed.wait()
                attempts.since = monotonic()
            try:
                server = await self._fleet.acquire(
                    call.call_id, sequence.digests, request.adapter, attempts.avoid, attempts.since
                )
            except CallFault as outage:
                generation.fail("engine_dead", attempts.outage(outage))
                return
            fault = await self._call(generation, server, call)
            if generation.done:
                return
            attempts.count(server.url, fault, len(sequence.tokens), monotonic())
            if (trouble := attempts.trouble(fault)) is not None:
                generation.fail("engine_error", trouble)
                return

    def _next_call(self, generation: Generation) -> GenerateCall | None:
        try:
            call = generation.next_call()
        except CallFault as fault:
            generation.fail("engine_error", str(fault))
            call = None
        self._collect(generation)
        return call

    async def _call(
        self, generation: Generation, server: EngineServer, call: GenerateCall
    ) -> CallFault | None:
        fault: CallFault | None = None
        try:
            if generation.done:  # while a server was waited for
                return None
            self._request_metrics.started([generation.sequence], monotonic())
            await self._client.generate(server, call, partial(self._receive, generation))
            if not generation.done:
                generation.end_call()
                self._collect(generation)
        except CallFault as raised:
            fault = raised
        finally:
            self._fleet.release(server, call.call_id, fault)
        return fault

    def _receive(self, generation: Generation, chunk: AnswerChunk) -> bool:
        """Takes a part of an answer; returns whether more is wanted. Raises `CallFault`."""
        generation.receive(chunk)
        # The last tokens are delivered with the end: nobody goes on after them if this process dies between.
        if generation.messages and not generation.awaits_usage:
            self._collect(generation)
        return not (generation.done or generation.call_over)

    # Delivery

    def _collect(self, generation: Generation, *, ended: bool = False) -> None:
        """Moves messages to the outbox; the last ones in `_end`: when they are delivered, the id is free."""
        if generation.done and not ended:
            return
        messages, generation.messages = generation.messages, []
        for message in messages:
            if isinstance(message, Tokens):
                self._collect_tokens(generation.sequence, message)
            elif isinstance(message, Finished | Failed):
                self._outbox.append(self._with_times(generation.sequence, message))
            else:
                self._outbox.append(message)
        if messages or self._ended:
            self._deliver_soon()

    def _deliver_soon(self) -> None:
        if self._delivery is None:
            loop = asyncio.get_running_loop()
            delay = self._delivered_at + self._delivery_seconds - monotonic()
            self._delivery = (
                loop.call_later(delay, self._deliver_now) if delay > 0 else loop.call_soon(self._deliver_now)
            )

    def _collect_tokens(self, sequence: TokenSequence, message: Tokens) -> None:
        count = len(message.token_ids)
        self._waiting.charge(sequence, count)
        self._undelivered_tokens += count
        self._request_metrics.received(sequence, count, monotonic())
        index = self._tokens_at.get(message.request_id)
        if index is None:
            self._tokens_at[message.request_id] = len(self._outbox)
            self._outbox.append(message)
            return
        earlier = self._outbox[index]
        assert isinstance(earlier, Tokens)
        logprobs = None if message.logprobs is None else (*(earlier.logprobs or ()), *message.logprobs)
        self._outbox[index] = Tokens(message.request_id, earlier.token_ids + message.token_ids, logprobs)

    def _deliver_now(self) -> None:
        self._delivery, self._delivered_at = None, monotonic()
        self._metrics.count_tokens(self._undelivered_tokens, self._delivered_at)
        self._undelivered_tokens = 0
        self._tokens_at.clear()
        self._flush_outbox()
