"""`EndpointSlots`: how many events an endpoint may be sent at a time, so that slow ones delay none. Pure.

An endpoint whose last attempt succeeded is trusted, with PER_ENDPOINT attempts under way. All others have
one, share half of the senders, and after FAILURES in a row wait longer each time. So endpoints that hang
cannot use the other half, and a new one waits only behind those that have not failed before.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from uuid import UUID

PER_ENDPOINT = 4
"""Attempts under way at a trusted endpoint."""
FAILURES = 3
"""Failures in a row from which on an endpoint is tried less often."""
MAX_PAUSE_SECONDS = 300.0
"""The pause between attempts at an endpoint that only fails."""
_MAX_DOUBLINGS = 32


@dataclass(slots=True)
class _Endpoint:
    under_way: int = 0
    failures: int = 0
    """In a row."""
    is_trusted: bool = False
    paused_until: float = -inf


class EndpointSlots:
    """One thread. Times are the caller's, in monotonic seconds."""

    def __init__(self, senders: int, first_pause: float) -> None:
        self._senders = senders
        self._first_pause = first_pause
        self._endpoints: defaultdict[UUID, _Endpoint] = defaultdict(_Endpoint)

    def free(self) -> int:
        """Senders without an attempt."""
        return self._senders - sum(endpoint.under_way for endpoint in self._endpoints.values())

    def room(self, due: Iterable[UUID], now: float) -> dict[UUID, int]:
        """The number of further attempts that may begin, by endpoint; endpoints without any are left out.

        Of the endpoints that are not trusted those come first that have failed least here, in the order of
        `due`.
        """
        states = {key: self._endpoints[key] for key in due}
        states = {key: state for key, state in states.items() if state.paused_until <= now}
        room = {key: PER_ENDPOINT - state.under_way for key, state in states.items() if state.is_trusted}
        idle = [key for key, state in states.items() if not (state.is_trusted or state.under_way)]
        used = sum(state.under_way for state in self._endpoints.values() if not state.is_trusted)
        idle.sort(key=lambda key: states[key].failures)
        room |= dict.fromkeys(idle[: max(self._senders // 2 - used, 0)], 1)
        return {key: number for key, number in room.items() if number > 0}

    def begin(self, endpoint: UUID) -> None:
        self._endpoints[endpoint].under_way += 1

    def end(self, endpoint: UUID, now: float, *, received: bool, throttle_seconds: float = 0.0) -> None:
        """An attempt ends. `throttle_seconds` is for how long the receiver asked for nothing."""
        state = self._endpoints[endpoint]
        state.under_way -= 1
        state.is_trusted = received
        state.failures = 0 if received else state.failures + 1
        pause = throttle_seconds
        if state.failures >= FAILURES:
            doublings = min(state.failures - FAILURES, _MAX_DOUBLINGS)
            pause = max(pause, min(self._first_pause * 2.0**doublings, MAX_PAUSE_SECONDS))
        state.paused_until = max(state.paused_until, now + pause)
