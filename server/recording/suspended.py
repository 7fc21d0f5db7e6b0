"""Runs whose last update is not committed yet, while all others continue. Pure.

An update that cannot be committed with the others is left to the side writer. Until it reports a result,
the run takes no message, because its next update must be stored and published after this one. The
messages are retained in order.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from server.recording.messages import RecorderMessage, ReleaseRuns, RunUpdate, StartRun, response_hex_of

MAX_RETAINED = 8192
"""Messages to one run. Each has one token or a few, so this is minutes of the fastest stream. A run with
more is given up."""


@dataclass(slots=True)
class _Suspension:
    background: bool
    retained: list[RecorderMessage] = field(default_factory=list)
    given_up: bool = False


class SuspendedRuns:
    """The recorder's thread only."""

    def __init__(self, max_retained: int = MAX_RETAINED) -> None:
        self._max_retained = max_retained
        self._suspensions: dict[UUID, _Suspension] = {}

    def __bool__(self) -> bool:
        return bool(self._suspensions)

    @property
    def count(self) -> int:
        return len(self._suspensions)

    def __contains__(self, response: UUID) -> bool:
        return response in self._suspensions

    def add(self, update: RunUpdate) -> None:
        """Suspends the update's run until `resume`."""
        self._suspensions[update.run.facts.id] = _Suspension(update.run.facts.echo.background)

    def resume(self, response: UUID) -> list[RecorderMessage]:
        """Ends the suspension; returns the messages retained meanwhile, none for a run that is not
        suspended.
        """
        suspension = self._suspensions.pop(response, None)
        return suspension.retained if suspension else []

    def give_up(self, response: UUID) -> bool:
        """Drops the messages of a run that does not continue here, also future ones; False if done before."""
        suspension = self._suspensions.get(response)
        if suspension is None or suspension.given_up:
            return False
        suspension.given_up = True
        suspension.retained.clear()
        return True

    def divert(self, messages: Sequence[RecorderMessage]) -> list[RecorderMessage]:
        """Retains messages to suspended runs; returns the others."""
        if not self._suspensions:
            return list(messages)
        return [rest for message in messages for rest in self._diverted(message)]

    def over_limit(self) -> list[UUID]:
        """Runs with more retained messages than allowed, which have to be given up."""
        return [
            response
            for response, suspension in self._suspensions.items()
            if len(suspension.retained) > self._max_retained
        ]

    def _diverted(self, message: RecorderMessage) -> Iterable[RecorderMessage]:
        """The part of a message that is for runs which are not suspended; the rest is retained."""
        if isinstance(message, ReleaseRuns):
            return self._diverted_release(message)
        if isinstance(message, StartRun) or not (key := response_hex_of(message)):
            return (message,)
        response = UUID(hex=key)
        if response not in self._suspensions:
            return (message,)
        self._retain(response, message)
        return ()

    def _diverted_release(self, message: ReleaseRuns) -> Iterable[RecorderMessage]:
        for response, suspension in self._suspensions.items():
            wanted = message.response_ids
            if suspension.background if wanted is None else response in wanted:
                self._retain(response, ReleaseRuns(frozenset({response})))
        if message.response_ids is None:
            return (message,)
        others = message.response_ids - self._suspensions.keys()
        return (ReleaseRuns(others),) if others else ()

    def _retain(self, response: UUID, message: RecorderMessage) -> None:
        suspension = self._suspensions[response]
        if not suspension.given_up:
            suspension.retained.append(message)
