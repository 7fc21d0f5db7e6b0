"""When a step that could not be committed with the others is tried again, and in which way. Pure.

It is written as it is until it has been refused, or was blocked too often. From then on the response is
brought to an end in one of two ways, in turns, until one of them is committed: it ends as failed, with what
is stored of it; or it is handed back, for any replica to claim.
"""

from dataclasses import dataclass, field
from typing import Literal
from uuid import UUID

from server.recording.run_registry import RunUpdate
from server.store.commit_failures import CommitFailure

MOST_TRIES = 8
"""Blocked tries, after which a step is given up; with the pauses and the waits for locks that is about 20 s,
longer than any transaction of ours lasts."""
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0
AWAY_PAUSE_SECONDS = 0.2

Way = Literal["write", "fail", "hand back"]


@dataclass(slots=True, eq=False)
class Retry:
    """A step on its way into the database."""

    step: RunUpdate
    next_at: float
    way: Way = "write"
    tries: int = 0
    """That the database answered."""

    @property
    def response(self) -> UUID:
        return self.step.run.facts.id

    @property
    def given_up(self) -> bool:
        return self.way != "write"


@dataclass(slots=True)
class Retries:
    """The steps that are retried."""

    _pending: list[Retry] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self._pending)

    def add(self, step: RunUpdate, now: float) -> None:
        self._pending.append(Retry(step, now))

    def due(self, now: float) -> Retry | None:
        """The one that has waited longest, if its time has come."""
        first = min(self._pending, key=lambda retry: retry.next_at, default=None)
        return first if first is not None and first.next_at <= now else None

    def wait(self, now: float) -> float | None:
        """Seconds until one is due; None if there is none."""
        times = [retry.next_at for retry in self._pending]
        return max(0.0, min(times) - now) if times else None

    def done(self, retry: Retry) -> None:
        self._pending.remove(retry)

    def give_up(self, response: UUID, now: float) -> None:
        """The step is not to be written as it is any more, if it is here at all."""
        for retry in self._pending:
            if retry.response == response and not retry.given_up:
                _give_up(retry, "timed_out")
                retry.next_at = now

    def failed(self, retry: Retry, trouble: CommitFailure, now: float) -> None:
        """A try was not committed. Outages and a broken schema are waited out, whatever is written."""
        if trouble in ("unavailable", "schema_mismatch"):
            retry.next_at = now + AWAY_PAUSE_SECONDS
            return
        retry.tries += 1
        pause = min(FIRST_PAUSE_SECONDS * 2.0 ** min(retry.tries - 1, 16), LONGEST_PAUSE_SECONDS)
        if retry.given_up:
            retry.way = "hand back" if retry.way == "fail" else "fail"
        elif trouble != "timed_out" or retry.tries >= MOST_TRIES:
            _give_up(retry, trouble)
            pause = 0.0
        retry.next_at = now + pause


def _give_up(retry: Retry, trouble: CommitFailure) -> None:
    """What was only blocked may well succeed elsewhere, if the request says that it may run elsewhere."""
    elsewhere = trouble == "timed_out" and retry.step.run.facts.echo.background
    retry.way = "hand back" if elsewhere else "fail"
