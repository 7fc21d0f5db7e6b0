"""`EndpointSlots`: how many events an endpoint may be sent at a time, so that slow ones delay none. Pure.

An endpoint is trusted when its last attempt succeeded. Trusted endpoints may have PER_ENDPOINT attempts under
way. All others have one, share half of the senders, and after FAILURES failures in a row wait between
attempts, longer each time. So endpoints that hang cannot use the other half, however many there are, and one
that is not known yet waits behind them only if it has failed before.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from uuid import UUID

PER_ENDPOINT = 4
"""Attempts under way at a trusted endpoint."""
FAILURES = 3
"""Failures in a row from which on an endpoint is tried less often."""
MAX_PAUSE_SECONDS = 300.0
"""Between attempts at an endpoint that only fails."""
_FORGOTTEN_SECONDS = 3600.0
_MAX_DOUBLINGS = 32


@dataclass(slots=True)
class _Endpoint:
    under_way: int = 0
    failures: int = 0
    """In a row."""
    is_trusted: bool = False
    used_at: float = -inf
    """When its last attempt began or ended."""
    paused_until: float = -inf


class EndpointSlots:
    """One thread. Times are the caller's, in monotonic seconds."""

    def __init__(self, senders: int, first_pause: float) -> None:
        self._senders = senders
        self._first_pause = first_pause
        self._endpoints: dict[UUID, _Endpoint] = {}

    def free(self) -> int:
        """Senders without an attempt."""
        return self._senders - sum(endpoint.under_way for endpoint in self._endpoints.values())

    def room(self, waiting: Mapping[UUID, bool], now: float) -> dict[UUID, int]:
        """How many further attempts may begin at those of the endpoints at which one may.

        `waiting` says of each whether a repetition waits for it. Of the endpoints that are not trusted those
        come first for which none does, and then those that were not used for longest.
        """
        known = {key: self._endpoints.get(key, _Endpoint()) for key in waiting}
        open_now = {key: one for key, one in known.items() if one.paused_until <= now}
        room = {key: PER_ENDPOINT - one.under_way for key, one in open_now.items() if one.is_trusted}
        idle = [key for key, one in open_now.items() if not (one.is_trusted or one.under_way)]
        shared = self._senders // 2 - sum(
            one.under_way for one in self._endpoints.values() if not one.is_trusted
        )
        idle.sort(key=lambda key: (waiting[key], open_now[key].used_at))
        room |= dict.fromkeys(idle[: max(shared, 0)], 1)
        return {key: number for key, number in room.items() if number > 0}

    def begin(self, endpoint: UUID, now: float) -> None:
        """An attempt begins."""
        state = self._endpoints.setdefault(endpoint, _Endpoint())
        state.under_way += 1
        state.used_at = now

    def end(self, endpoint: UUID, now: float, *, received: bool, throttle_seconds: float = 0.0) -> None:
        """An attempt ends. `throttle_seconds` is for how long the receiver asked for nothing."""
        state = self._endpoints[endpoint]
        state.under_way -= 1
        state.used_at = now
        state.is_trusted = received
        state.failures = 0 if received else state.failures + 1
        pause = throttle_seconds
        if state.failures >= FAILURES:
            doublings = min(state.failures - FAILURES, _MAX_DOUBLINGS)
            pause = max(pause, min(self._first_pause * 2.0**doublings, MAX_PAUSE_SECONDS))
        if pause:
            state.paused_until = max(state.paused_until, now + pause)
        self._forget_unused(now)

    def _forget_unused(self, now: float) -> None:
        """Endpoints that were not used for an hour are tried as new ones."""
        unused = [
            key
            for key, one in self._endpoints.items()
            if not one.under_way and max(one.used_at, one.paused_until) + _FORGOTTEN_SECONDS < now
        ]
        for key in unused:
            del self._endpoints[key]
