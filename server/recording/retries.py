"""When and how an update is retried that could not be committed with the others. Pure.

It is written as it is until Postgres refuses it or it was blocked too often. From then on the response is
ended in one of two ways, in turns, until one is committed: as failed, with its stored output; or released,
for any replica to claim.
"""

from dataclasses import dataclass, field
from typing import Literal
from uuid import UUID

from server.recording.messages import RunUpdate
from server.store.database_errors import CommitFailure

MAX_TRIES = 8
"""Blocked tries, after which an update is given up. With pauses and lock timeouts that is about 20 s, longer
than any transaction of ours."""
FIRST_PAUSE_SECONDS = 0.1
MAX_PAUSE_SECONDS = 5.0
AWAY_PAUSE_SECONDS = 0.2

Way = Literal["write", "fail", "hand back"]


@dataclass(slots=True, eq=False)
class Retry:
    """An update and how it is written next."""

    update: RunUpdate
    next_at: float
    way: Way = "write"
    tries: int = 0
    """Tries that the database answered, so none during an outage."""

    @property
    def response(self) -> UUID:
        return self.update.run.facts.id

    @property
    def given_up(self) -> bool:
        return self.way != "write"


@dataclass(slots=True)
class Retries:
    """The updates that are being retried."""

    _pending: list[Retry] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self._pending)

    def add(self, update: RunUpdate, now: float) -> None:
        self._pending.append(Retry(update, now))

    def due(self, now: float) -> Retry | None:
        """The retry that has been due for longest; None if none is due."""
        first = min(self._pending, key=lambda retry: retry.next_at, default=None)
        return first if first is not None and first.next_at <= now else None

    def wait(self, now: float) -> float | None:
        """Seconds until a retry is due; None if there are no retries."""
        times = [retry.next_at for retry in self._pending]
        return max(0.0, min(times) - now) if times else None

    def done(self, retry: Retry) -> None:
        self._pending.remove(retry)

    def give_up(self, response: UUID, now: float) -> None:
        """Ends the response instead of writing its update as it is, if that is still pending."""
        for retry in self._pending:
            if retry.response == response and not retry.given_up:
                _give_up(retry, "timed_out")
                retry.next_at = now

    def failed(self, retry: Retry, trouble: CommitFailure, now: float) -> None:
        """Schedules the next try. Outages and a broken schema are waited out and count as no try."""
        if trouble in ("unavailable", "schema_mismatch"):
            retry.next_at = now + AWAY_PAUSE_SECONDS
            return
        retry.tries += 1
        pause = min(FIRST_PAUSE_SECONDS * 2.0 ** min(retry.tries - 1, 16), MAX_PAUSE_SECONDS)
        if retry.given_up:
            retry.way = "hand back" if retry.way == "fail" else "fail"
        elif trouble != "timed_out" or retry.tries >= MAX_TRIES:
            _give_up(retry, trouble)
            pause = 0.0
        retry.next_at = now + pause


def _give_up(retry: Retry, trouble: CommitFailure) -> None:
    """A background response whose row was only blocked may succeed on another replica; others fail."""
    elsewhere = trouble == "timed_out" and retry.update.run.facts.echo.background
    retry.way = "hand back" if elsewhere else "fail"
