"""`RequestRegistry`: unfinished requests, the engine thread's inbox, limits on acceptance.

Shared by the engine thread and all others, behind one lock. Enforces the limits in total and per fairness
key: both count places. A request takes one from its acceptance until its removal; a search takes those of its
widest step from its acceptance until its end, so that none of its later steps finds the engine full.
"""

import queue
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from time import monotonic

from engine.grammar.compiler import CompiledGrammar
from engine.request import Cancel, EngineRequest, RequestRefused


@dataclass(frozen=True, slots=True)
class AcceptedRequest:
    """A request with data that the submitting thread computed, to relieve the engine thread."""

    request: EngineRequest
    digests: list[bytes]
    """Digests of the prompt's full blocks."""
    grammar: CompiledGrammar | None = None
    """The compiled grammar; the engine thread never compiles one."""
    has_place: bool = False
    """It takes one of the places that were reserved for it."""
    at: float = field(default_factory=monotonic)
    """When it was accepted."""


@dataclass(frozen=True, slots=True)
class Close:
    """Ends the engine thread: after the accepted requests (`drain`), or after cancelling them."""

    drain: bool


@dataclass(frozen=True, slots=True)
class PauseChanged:
    """Wakes the engine thread, which reads `RequestRegistry.paused`."""


Inbound = AcceptedRequest | Cancel | Close | PauseChanged


class RequestRegistry:
    """Each request is removed exactly once, before its last message is delivered."""

    def __init__(self, capacity: int, capacity_per_key: int | None) -> None:
        self.inbox: queue.SimpleQueue[Inbound] = queue.SimpleQueue()
        self.paused = False
        """While set, no step begins."""
        self._capacity = capacity
        self._capacity_per_key = capacity_per_key
        self._requests: dict[str, EngineRequest] = {}
        self._in_reserved: set[str] = set()
        """Ids of the requests whose places were reserved."""
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
        """Raises `RequestRefused` if `accept` would."""
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
            left = self._in_reserved.intersection(request_ids)
            self._in_reserved -= left
            self._change_places(fairness_key, len(left) - places)

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
