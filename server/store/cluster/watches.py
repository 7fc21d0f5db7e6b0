"""Which other replicas follow which responses, so that only they are notified of new events. Pure.

A replica announces what it follows when it begins to, and again while it goes on. Who runs the response, now
or after a claim, remembers that for a while. An announcement may be lost: the follower reads the log on its
own, too.
"""

from collections.abc import Iterable
from uuid import UUID

RENEW_SECONDS = 2.0
"""Seconds between two announcements of the same response."""
KEEP_SECONDS = 7.0
"""How long an announcement holds: one may be lost, and a reader of the log may be late."""
SILENCE_SECONDS = 0.2
"""After so long without events a reader of the log may look for them less often."""
MAX_WATCHES = 100_000
"""Announcements that are remembered. Followers that made further ones learn by reading the log."""


class Watches:
    """The announcements of other replicas. Not thread-safe; times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._until: dict[UUID, dict[UUID, float]] = {}
        """By response, by replica: how long its announcement holds."""
        self._event_at: dict[UUID, float] = {}
        """By followed response: when it last had events."""
        self._count = 0
        self._swept_at = 0.0

    def __bool__(self) -> bool:
        """Whether any announcement is remembered."""
        return bool(self._until)

    def add(self, replica: UUID, responses: Iterable[UUID], now: float) -> list[UUID]:
        """Remembers that a replica follows these responses; returns those that it did not follow before."""
        self._sweep(now)
        new = []
        for response in responses:
            until = self._until.get(response, {})
            if until.get(replica, 0.0) <= now:
                if replica not in until and self._count >= MAX_WATCHES:
                    continue
                self._count += replica not in until
                new.append(response)
            self._until.setdefault(response, until)[replica] = now + KEEP_SECONDS
        return new

    def followers(self, response: UUID, now: float) -> list[UUID]:
        """The replicas that follow a response."""
        until = self._until.get(response)
        return [] if until is None else [replica for replica, end in until.items() if end > now]

    def was_silent(self, response: UUID, now: float) -> bool:
        """Whether the events that a followed response has now come after a silence."""
        before, self._event_at[response] = self._event_at.get(response), now
        return before is None or now - before > SILENCE_SECONDS

    def _sweep(self, now: float) -> None:
        """Forgets what has expired, at most once in a while."""
        if now < self._swept_at + KEEP_SECONDS:
            return
        self._swept_at = now
        for response in list(self._until):
            left = {replica: end for replica, end in self._until[response].items() if end > now}
            self._count -= len(self._until[response]) - len(left)
            if left:
                self._until[response] = left
            else:
                del self._until[response]
        self._event_at = {response: at for response, at in self._event_at.items() if response in self._until}
