"""`InboxReader`: the engine thread's side of the front: handles its messages, delivers those of requests.

Guarantees: each accepted request gets exactly one `Finished` or `Failed`, and leaves the registry before that
is delivered.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from time import monotonic
from typing import TypeVar

from engine.front.request_metrics import EndReason, RequestMetrics
from engine.front.request_registry import AcceptedRequest, Close, Inbound, PauseChanged, RequestRegistry
from engine.request import (
    Cancel,
    CancelReason,
    Deliver,
    EngineRequest,
    Failed,
    Finished,
    Outbound,
    TokenUsage,
    describe,
)
from engine.scheduling.sequence import TokenSequence

log = logging.getLogger(__name__)

Last = TypeVar("Last", bound=Finished | Failed)


class InboxReader(ABC):
    """Runs on the engine thread, `fail_all` after its end too."""

    def __init__(self, registry: RequestRegistry, deliver: Deliver, metrics: RequestMetrics) -> None:
        self._registry = registry
        self._deliver = deliver
        self._request_metrics = metrics
        self._closing: Close | None = None
        self._outbox: list[Outbound] = []
        self._ended: list[str] = []
        """Ids of requests whose last message is in the outbox."""
        self.delivering = False
        """A call of the `deliver` callback is running."""

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
            case PauseChanged():
                pass
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
