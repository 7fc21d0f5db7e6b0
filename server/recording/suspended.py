"""Runs whose last step is not committed yet, while all others go on. Pure.

A step that cannot be committed with the others is retried aside. Until that has an outcome its run takes no
message, for its next step must be stored and told behind it: the messages are retained, in order.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from server.recording.messages import (
    Inbound,
    ReleaseRuns,
    RunUpdate,
    StartRun,
    key_of,
)

MOST_RETAINED = 8192
"""Messages to one run; they hold a token each, or a few, so this is minutes of the fastest stream. A run
that gets more is given up."""


@dataclass(slots=True)
class _Suspension:
    background: bool
    retained: list[Inbound] = field(default_factory=list)
    given_up: bool = False


class Suspended:
    """The suspended runs. The recorder's thread only."""

    def __init__(self, most_retained: int = MOST_RETAINED) -> None:
        self._most_retained = most_retained
        self._suspensions: dict[UUID, _Suspension] = {}

    def __bool__(self) -> bool:
        return bool(self._suspensions)

    @property
    def count(self) -> int:
        return len(self._suspensions)

    def __contains__(self, response: UUID) -> bool:
        return response in self._suspensions

    def add(self, step: RunUpdate) -> None:
        """The step is not committed; its run takes nothing until `release`."""
        self._suspensions[step.run.facts.id] = _Suspension(step.run.facts.echo.background)

    def release(self, response: UUID) -> list[Inbound]:
        """The step has an outcome: the messages that have come meanwhile, none for a run that is unknown."""
        suspension = self._suspensions.pop(response, None)
        return suspension.retained if suspension else []

    def give_up(self, response: UUID) -> bool:
        """Retains nothing more for a run that will not go on here; False if that was known."""
        suspension = self._suspensions.get(response)
        if suspension is None or suspension.given_up:
            return False
        suspension.given_up = True
        suspension.retained.clear()
        return True

    def divert(self, messages: Sequence[Inbound]) -> list[Inbound]:
        """The messages that are for other runs; the rest is retained."""
        if not self._suspensions:
            return list(messages)
        return [rest for message in messages for rest in self._pass(message)]

    def overfull(self) -> list[UUID]:
        """Runs that have more messages retained than they may; they are to be given up."""
        return [
            response
            for response, suspension in self._suspensions.items()
            if len(suspension.retained) > self._most_retained
        ]

    def _pass(self, message: Inbound) -> Iterable[Inbound]:
        """What of a message is for runs that are not suspended."""
        if isinstance(message, ReleaseRuns):
            return self._pass_hand_back(message)
        if isinstance(message, StartRun) or not (key := key_of(message)):
            return (message,)
        response = UUID(hex=key)
        if response not in self._suspensions:
            return (message,)
        self._retain(response, message)
        return ()

    def _pass_hand_back(self, message: ReleaseRuns) -> Iterable[Inbound]:
        for response, suspension in self._suspensions.items():
            wanted = message.response_ids
            if suspension.background if wanted is None else response in wanted:
                self._retain(response, ReleaseRuns(frozenset({response})))
        if message.response_ids is None:
            return (message,)
        others = message.response_ids - self._suspensions.keys()
        return (ReleaseRuns(others),) if others else ()

    def _retain(self, response: UUID, message: Inbound) -> None:
        suspension = self._suspensions[response]
        if not suspension.given_up:
            suspension.retained.append(message)
