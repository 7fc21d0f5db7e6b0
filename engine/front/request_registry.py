"""`RequestRegistry`: unfinished requests, the engine thread's inbox, limits; `InboxReader` on that thread.

The registry is shared by the engine thread and all others, behind one lock. It enforces the limits in total
and per fairness key: both count places. A request takes one from its acceptance until its removal; a search
takes those of its widest step from its acceptance until its end, so that no later step finds the engine full.
"""

import logging
import queue
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import TypeVar

from engine.front.request_metrics import EndReason, RequestMetrics
from engine.grammar.compiler import CompiledGrammar
from engine.request import (
    Cancel,
    CancelReason,
    Deliver,
    EngineRequest,
    Failed,
    Finished,
    Outbound,
    RequestRefused,
    TokenUsage,
    describe,
)
from engine.scheduling.sequence import TokenSequence

log = logging.getLogger(__name__)

Last = TypeVar("Last", bound=Finished | Failed)


@dataclass(frozen=True, slots=True)
class AcceptedRequest:
    """A request with data that the submitting thread computed, to relieve the engine thread."""

    request: EngineRequest
    digests: list[bytes]
    """The chained digests of the prompt's full blocks."""
    grammar: CompiledGrammar | None = None
    """The compiled grammar; the engine thread never compiles one."""
    has_place: bool = False
    """It takes one of the places that were reserved for it."""
    at: float = field(default_factory=monotonic)


@dataclass(frozen=True, slots=True)
class Close:
    """Ends the engine thread: after the accepted requests (`drain`), or after cancelling them."""

    drain: bool


Inbound = AcceptedRequest | Cancel | Close | None
"""None wakes the engine thread, which reads `RequestRegistry.paused`."""


class RequestRegistry:
    """Each request is removed exactly once, before its last message is delivered."""

    def __init__(self, capacity: int, capacity_per_key: int | None) -> None:
        self.inbox: queue.SimpleQueue[Inbound] = queue.SimpleQueue()
        self.paused = False
        self._capacity = capacity
        self._capacity_per_key = capacity_per_key
        self._requests: dict[str, EngineRequest] = {}
        self._in_reserved: set[str] = set()
        self._places = 0
        self._places_by_key: Counter[str] = Counter()
        self._closed: str | None = None
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def closed(self) -> bool:
        return self._closed is not None

    def check(self, request: EngineRequest) -> None:
        with self._lock:
            self._refuse_id(request)
            self._refuse_places(request.fairness_key, 1)

    def accept(self, accepted: AcceptedRequest) -> None:
        """Queues the request or raises `RequestRefused`; one that has a place, not for the limits."""
        request = accepted.request
        with self._lock:
            self._refuse_id(request)
            if accepted.has_place:
                self._in_reserved.add(request.request_id)
            else:
                self._refuse_places(request.fairness_key, 1)
                self._change_places(request.fairness_key, 1)
            self._requests[request.request_id] = request
            self.inbox.put(accepted)

    def reserve(self, fairness_key: str, places: int) -> None:
        """Takes places for later requests, all or none, until `release`. Raises `RequestRefused`."""
        with self._lock:
            self._refuse_closed()
            self._refuse_places(fairness_key, places)
            self._change_places(fairness_key, places)

    def release(self, fairness_key: str, places: int, request_ids: Iterable[str]) -> None:
        """Gives back what `reserve` took; those of `request_ids` that have not ended keep a place each."""
        with self._lock:
            unended = self._in_reserved.intersection(request_ids)
            self._in_reserved -= unended
            self._change_places(fairness_key, len(unended) - places)

    def close(self, sentence: str) -> None:
        """Refuses all further requests with this sentence; that of the first call is kept."""
        with self._lock:
            self._closed = self._closed or sentence

    def remove(self, request_id: str) -> None:
        with self._lock:
            self._remove(request_id)

    def remove_all(self) -> list[EngineRequest]:
        """Removes and returns all requests; drops all inbox messages but `Close`. Reservations stay."""
        with self._lock:
            requests = [self._remove(request_id) for request_id in list(self._requests)]
            for _ in range(self.inbox.qsize()):
                message = self.inbox.get()
                if isinstance(message, Close):
                    self.inbox.put(message)
            return requests

    def _remove(self, request_id: str) -> EngineRequest:
        request = self._requests.pop(request_id)
        if request_id in self._in_reserved:
            self._in_reserved.remove(request_id)
        else:
            self._change_places(request.fairness_key, -1)
        return request

    def _change_places(self, fairness_key: str, change: int) -> None:
        self._places += change
        self._places_by_key[fairness_key] += change
        if not self._places_by_key[fairness_key]:
            del self._places_by_key[fairness_key]

    def _refuse_closed(self) -> None:
        if self._closed is not None:
            raise RequestRefused("closed", self._closed)

    def _refuse_id(self, request: EngineRequest) -> None:
        self._refuse_closed()
        if request.request_id in self._requests:
            raise RequestRefused("duplicate", f"Request {request.request_id} is already in the engine.")

    def _refuse_places(self, fairness_key: str, places: int) -> None:
        if self._places + places > self._capacity:
            raise RequestRefused(
                "overloaded",
                f"The engine may hold {self._capacity} requests; it has no room for {places} more.",
            )
        capacity = self._capacity_per_key
        if capacity is not None and self._places_by_key[fairness_key] + places > capacity:
            raise RequestRefused(
                "share_full",
                f"A fairness key may have {capacity} unfinished requests; this one, not {places} more.",
            )


class InboxReader(ABC):
    """Handles the engine thread's messages and delivers those of requests; `fail_all` after its end, too.

    Each accepted request gets exactly one `Finished` or `Failed`, and leaves the registry before that.
    """

    def __init__(self, registry: RequestRegistry, deliver: Deliver, metrics: RequestMetrics) -> None:
        self._registry = registry
        self._deliver = deliver
        self._request_metrics = metrics
        self._closing: Close | None = None
        self._outbox: list[Outbound] = []
        self._ended: list[str] = []
        """Ids of requests whose last message is in the outbox."""
        self.delivering = False

    @abstractmethod
    def _live_sequences(self) -> dict[str, TokenSequence]:
        """The requests that have not ended, by id."""

    @abstractmethod
    def _begin(self, sequence: TokenSequence) -> None:
        """Takes a new request. What it raises fails this request only."""

    @abstractmethod
    def _cancel(self, request_id: str, reason: CancelReason) -> None:
        """Ends a request; unknown ids are ignored."""

    def _handle(self, message: Inbound) -> None:
        match message:
            case AcceptedRequest():
                self._admit(message)
            case Cancel(request_id, reason):
                self._cancel(request_id, reason)
            case Close(drain):
                self._closing = message
                if not drain:
                    for request_id in list(self._live_sequences()):
                        self._cancel(request_id, "cancelled")

    @property
    def _paused(self) -> bool:
        """Whether nothing may be computed; a closed engine is never paused."""
        return self._registry.paused and not self._closing

    def _admit(self, accepted: AcceptedRequest) -> None:
        request = accepted.request
        try:
            sequence = TokenSequence(request, accepted.digests, accepted.grammar)
            self._begin(sequence)
        except Exception as error:
            log.exception("request %s cannot be handled", request.request_id)
            usage = TokenUsage(prompt=len(request.prompt))
            self._outbox.append(Failed(request.request_id, "engine_error", describe(error), usage))
            self._ended.append(request.request_id)
            self._request_metrics.failed()
            return
        self._request_metrics.admitted(sequence, accepted.at)

    def fail_all(self, cause: BaseException) -> None:
        """Delivers the outbox, and `Failed` to every unfinished request, those in the inbox included."""
        ended, sequences = set(self._ended), self._live_sequences()
        failures = [
            self._failure(request, sequences.get(request.request_id), describe(cause))
            for request in self._registry.remove_all()
            if request.request_id not in ended
        ]
        messages, self._outbox, self._ended = [*self._outbox, *failures], [], []
        if messages:
            self._call_deliver(messages)

    def _failure(self, request: EngineRequest, sequence: TokenSequence | None, cause: str) -> Failed:
        if sequence is None:  # it is in the inbox
            self._request_metrics.failed()
            return Failed(request.request_id, "engine_dead", cause, TokenUsage(prompt=len(request.prompt)))
        return self._with_times(sequence, Failed(request.request_id, "engine_dead", cause, sequence.usage))

    def _with_times(self, sequence: TokenSequence, last: Last) -> Last:
        """The request's last message with its times, which are counted."""
        reason: EndReason = "error"
        if isinstance(last, Finished):
            reason = "abort" if last.reason == "cancelled" else last.reason
        return replace(last, times=self._request_metrics.ended(sequence, reason, monotonic()))

    def _flush_outbox(self) -> None:
        """Delivers the outbox. Ended requests leave the registry first: their ids are free."""
        for request_id in self._ended:
            self._registry.remove(request_id)
        messages, self._outbox, self._ended = self._outbox, [], []
        if messages:
            self._call_deliver(messages)

    def _call_deliver(self, messages: Sequence[Outbound]) -> None:
        self.delivering = True
        try:
            self._deliver(messages)
        except Exception:
            # An error of the callback must not end all requests.
            log.exception("the deliver callback failed on %d messages", len(messages))
        finally:
            self.delivering = False
