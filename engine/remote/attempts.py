"""`Attempts`: what a request has tried, and when it gives up. Pure."""

from dataclasses import dataclass, field

from engine.remote.interface import EngineFault

MAX_FAILURES = 4
"""Faults of servers without a new token between them, after which a request fails: it may be the cause."""


@dataclass(slots=True)
class Attempts:
    """Of one request, the calls since its last token."""

    since: float
    """When it last had a server, or began to look for one: all that were asked since have turned it away. The
    wait for a server is counted from here, so that the answer 503 does not begin it again."""
    length: int
    """Of its tokens, the prompt included, after the last call."""
    avoid: set[str] = field(default_factory=set)
    """URLs of servers that failed or turned it away."""
    failures: int = 0
    turned_away: EngineFault | None = None
    """Why, the last time."""

    def count(self, url: str, fault: EngineFault | None, length: int, now: float) -> None:
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
            self.failures += fault.kind in ("failed", "lost")

    def resume(self, now: float) -> None:
        """Calls were held back until now."""
        self.since = now

    def trouble(self, fault: EngineFault | None) -> str | None:
        """Why the request fails after a call that ended so; None if it is tried again."""
        if fault is not None and fault.kind == "refused":
            return str(fault)
        if self.failures >= MAX_FAILURES:
            return f"{self.failures} engines failed in turn; at last: {fault}"
        return None

    def outage(self, outage: EngineFault) -> str:
        """Why the request fails when it has waited for a server for too long."""
        return str(outage) if self.turned_away is None else f"{outage}; at last: {self.turned_away}"
