"""RateLimits: requests and tokens a minute of keys and tenants, over all replicas; OpenAI's headers of them.

A request is counted when it is accepted. Its tokens are reserved before that, those of the prompt and as many
as the output may have, and corrected when the response has ended, by the replica on which it ended. Without a
limit nothing is counted and no query is made.
"""

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from time import monotonic
from uuid import UUID

from server.caller import Caller, Limits
from server.errors import RateLimited, RequestTooLarge
from server.limits.rate_window import WINDOW_SECONDS
from server.limits.window_share import Refusal, Standing, Taken, WindowShare
from server.store.administration import rate_windows, stored_keys
from server.store.administration.rate_windows import WindowKey
from server.store.database import Database
from server.store.database_errors import DatabaseError
from server.supervised_thread import Retry, SupervisedThread

log = logging.getLogger("holdfast.rate_limits")

DEFAULT_OUTPUT_TOKENS = 1024
"""Reserved for the output of a request without `max_output_tokens`."""
REQUESTS, TOKENS = "requests", "tokens"
_FLUSH_SECONDS = 0.5
_DELETE_SECONDS = 600.0
"""How often windows of which nothing counts any more are deleted."""
_MAX_UNSETTLED = 65536
"""Ended responses whose tokens are to be settled; beyond it, their reservations stay as they are."""


def reserved_tokens(prompt_tokens: int, max_output_tokens: int | None, *, wants_output: bool = True) -> int:
    """The tokens that a response reserves."""
    if not wants_output:
        return prompt_tokens
    return prompt_tokens + (DEFAULT_OUTPUT_TOKENS if max_output_tokens is None else max_output_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedResponse:
    """Tokens that were reserved for a response and that it used, in all of its turns."""

    id: UUID
    tenant: str
    key_id: str | None
    created_at: datetime
    reserved: int
    used: int
    may_be_of_others: bool
    """Whether another process, or an earlier one, may have accepted it."""


@dataclass(frozen=True, slots=True)
class _Booking:
    """Units taken from one window."""

    share: WindowShare
    taken: Taken

    def give_back(self) -> None:
        self.share.give_back(self.taken)


@dataclass(eq=False, slots=True)
class Reservation:
    """What a request has taken from the windows of its key and its tenant; empty without limits."""

    caller: Caller
    token_windows: Sequence[tuple[WindowShare, int]]
    """The caller's windows of tokens, with their limits."""
    requests: list[_Booking] = field(default_factory=list)
    tokens: dict[UUID, list[_Booking]] = field(default_factory=dict)

    def take_tokens(self, amounts: Mapping[UUID, int]) -> None:
        """Takes tokens for responses, in place of those taken before. Raises RateLimited, RequestTooLarge or
        DatabaseError.
        """
        self._give_tokens_back()
        total = sum(amounts.values())
        for share, limit in self.token_windows:
            outcome = share.take(total, limit)
            if isinstance(outcome, Refusal):
                self._give_tokens_back()
                raise refusal(self.caller, share.key, outcome)
            for response, amount in amounts.items():
                booking = _Booking(share, Taken(outcome.second, amount))
                self.tokens.setdefault(response, []).append(booking)

    def _give_tokens_back(self) -> None:
        for bookings in self.tokens.values():
            for booking in bookings:
                booking.give_back()
        self.tokens.clear()

    def cancel(self) -> None:
        """Gives everything back: the request is not accepted."""
        self._give_tokens_back()
        for booking in self.requests:
            booking.give_back()
        self.requests.clear()


class RateLimits:
    """The windows that this process uses, and the thread that settles them. Thread-safe."""

    def __init__(
        self, database: Database, clock: Callable[[], float] = monotonic, seconds: int = WINDOW_SECONDS
    ) -> None:
        self._database = database
        self._clock = clock
        self._seconds = seconds
        self._lock = threading.Lock()
        self._shares: dict[WindowKey, WindowShare] = {}
        self._running: dict[UUID, list[_Booking]] = {}
        """Tokens taken for responses that this process generates, until they end."""
        self._ended: deque[EndedResponse] = deque(maxlen=_MAX_UNSETTLED)
        """Ended responses that were accepted by another process, or by an earlier one."""
        self._deleted_at = clock()
        self.thread = SupervisedThread("rate limits", self._turn, retry=Retry(max_failures=None))

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        """Ends the thread, and gives back what is not used."""
        self.thread.stop()
        try:
            self._flush(self._all_shares())
        except DatabaseError as error:
            log.warning("rate limits are not settled: %s", type(error).__name__)

    @contextmanager
    def reserving(self, caller: Caller) -> Iterator[Reservation]:
        """Takes a request from the caller's windows; gives back what was taken if the block raises.

        Raises RateLimited or DatabaseError.
        """
        reservation = Reservation(caller, self.windows(caller, TOKENS))
        try:
            for share, limit in self.windows(caller, REQUESTS):
                outcome = share.take(1, limit)
                if isinstance(outcome, Refusal):
                    raise refusal(caller, share.key, outcome)
                reservation.requests.append(_Booking(share, outcome))
            yield reservation
        except BaseException:
            reservation.cancel()
            raise

    def keep_until_end(self, reservation: Reservation) -> None:
        """Has the tokens of responses that this process is about to generate settled when they end."""
        with self._lock:
            self._running.update(reservation.tokens)
        reservation.tokens.clear()

    def drop(self, responses: Sequence[UUID]) -> None:
        """These responses are not generated after all: gives their tokens back."""
        for response in responses:
            with self._lock:
                bookings = self._running.pop(response, ())
            for booking in bookings:
                booking.give_back()

    def settle(self, ended: EndedResponse) -> None:
        """Has what a response used counted in place of what was reserved for it."""
        with self._lock:
            bookings = self._running.pop(ended.id, None)
        if bookings is not None:
            for booking in bookings:
                self._correct(booking, ended.used)
        elif ended.may_be_of_others:
            self._ended.append(ended)

    def windows(self, caller: Caller, kind: str) -> list[tuple[WindowShare, int]]:
        """The caller's windows that have a limit: its key's and its tenant's."""
        return self._limited(caller.tenant, caller.counted_as, caller.limits, caller.settings.limits, kind)

    def _limited(
        self, tenant: str, counted_as: str, of_key: Limits, of_tenant: Limits, kind: str
    ) -> list[tuple[WindowShare, int]]:
        name = "requests_per_minute" if kind == REQUESTS else "tokens_per_minute"
        limits = ((counted_as, getattr(of_key, name)), ("", getattr(of_tenant, name)))
        return [
            (self._share(WindowKey(tenant, key_id, kind)), limit)
            for key_id, limit in limits
            if limit is not None
        ]

    def _share(self, key: WindowKey) -> WindowShare:
        share = self._shares.get(key)
        if share is not None:
            return share
        with self._lock:
            return self._shares.setdefault(key, WindowShare(key, self._database, self._clock, self._seconds))

    def look(self, caller: Caller) -> None:
        """Reads the caller's windows that this process does not know yet. Raises DatabaseError."""
        for kind in (REQUESTS, TOKENS):
            for share, limit in self.windows(caller, kind):
                share.take(0, limit)

    def standings(self, caller: Caller) -> dict[str, Standing]:
        """What is known here of the caller's windows, by kind; of two windows, the one with less left."""
        found: dict[str, Standing] = {}
        for kind in (REQUESTS, TOKENS):
            known = [share.standing() for share, _ in self.windows(caller, kind)]
            if standings := [one for one in known if one is not None]:
                found[kind] = min(standings, key=lambda one: one.remaining)
        return found

    def headers(self, caller: Caller) -> dict[str, str]:
        """The `x-ratelimit-…` headers of an answer to this caller."""
        return rate_limit_headers(self.standings(caller))

    def _all_shares(self) -> list[WindowShare]:
        with self._lock:
            return list(self._shares.values())

    def _turn(self) -> None:
        if self.thread.wait(_FLUSH_SECONDS):
            return
        try:
            self._settle_ended()
            shares = self._all_shares()
            self._flush(shares)
            self._drop_unused(shares)
        except DatabaseError as error:
            log.warning("rate limits are settled later: %s", type(error).__name__)

    def _settle_ended(self) -> None:
        """Settles responses that were accepted elsewhere, by their rows."""
        while self._ended:
            ended = self._ended[0]
            of_tenant, of_key, counted_as = self._database.autocommit(
                partial(stored_keys.limits_of, tenant=ended.tenant, key_id=ended.key_id)
            )
            taken = Taken(int(ended.created_at.timestamp()), ended.reserved)
            for share, _ in self._limited(ended.tenant, counted_as, of_key, of_tenant, TOKENS):
                self._correct(_Booking(share, taken), ended.used)
            self._ended.popleft()

    def _correct(self, booking: _Booking, used: int) -> None:
        """Gives back what was not used, or charges what was used beyond the booking.

        A response may run for longer than an unused window is kept here: it is kept again, to be written.
        """
        unused = booking.taken.amount - used
        if not unused:
            return
        with self._lock:
            share = self._shares.setdefault(booking.share.key, booking.share)
            if unused > 0:
                share.give_back(Taken(booking.taken.second, unused))
            else:
                share.charge(-unused)

    def _flush(self, shares: Sequence[WindowShare]) -> None:
        for share in shares:
            share.flush()

    def _drop_unused(self, shares: Sequence[WindowShare]) -> None:
        """Forgets windows that were not used for a while, here and in the database."""
        now = self._clock()
        with self._lock:
            for share in shares:
                if share.is_settled and now - share.used_at > 2 * self._seconds:
                    self._shares.pop(share.key, None)
        if now - self._deleted_at > _DELETE_SECONDS:
            self._deleted_at = now
            with self._database.begin() as connection:
                rate_windows.delete_old(connection, 2 * self._seconds)


def refusal(caller: Caller, key: WindowKey, refused: Refusal) -> RateLimited | RequestTooLarge:
    """The error of a request for which a window has no room."""
    whose = f"API key {caller.key_id}" if key.key_id else f"tenant {key.tenant}"
    if refused.seconds is None:
        return RequestTooLarge(whose, key.kind, refused.limit, refused.amount)
    return RateLimited(whose, key.kind, refused.limit, refused.used, refused.amount, refused.seconds)


def rate_limit_headers(standings: Mapping[str, Standing]) -> dict[str, str]:
    """The headers of an answer, by the kinds that have a limit."""
    headers: dict[str, str] = {}
    for kind, standing in standings.items():
        headers[f"x-ratelimit-limit-{kind}"] = str(standing.limit)
        headers[f"x-ratelimit-remaining-{kind}"] = str(standing.remaining)
        headers[f"x-ratelimit-reset-{kind}"] = duration(standing.reset_seconds)
    return headers


def duration(seconds: float) -> str:
    """A duration as OpenAI writes it: `17ms`, `8.64s`, `6m0s`."""
    milliseconds = math.ceil(seconds * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    shown = f"{rest / 1000:.3f}".rstrip("0").rstrip(".")
    return f"{minutes}m{shown}s" if minutes else f"{shown}s"
