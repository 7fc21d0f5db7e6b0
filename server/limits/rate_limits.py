"""`RateLimits`: requests and tokens a minute of keys and tenants, over all replicas, with OpenAI's headers. A
limit is a bucket that fills evenly within a minute. A request takes one of its key's and its tenant's buckets
before its prompt is prepared, and then the tokens of prompt and output. After the end what was not used is
given back, or the rest taken, within about a second. Without a limit there is no query.
"""

import logging
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Final

from server.caller import Caller
from server.errors import RateLimited, RequestTooLarge
from server.store.administration import rate_buckets
from server.store.administration.rate_buckets import KINDS, Bucket, BucketDemand, Kind, Unused
from server.store.database import Database
from server.store.database_errors import DatabaseError

log = logging.getLogger("holdfast.rate_limits")

DEFAULT_OUTPUT_TOKENS: Final = 1024
"""Taken for the output of a request without `max_output_tokens`."""
_REFUSED_SECONDS: Final = 0.25
"""How long requests are refused without a query after one was."""
_MAX_LEVELS: Final = 16_384
"""Buckets of which this process remembers the level. Beyond them full ones are forgotten, and at need all."""
_MAX_UNITS: Final = 2**53
"""Units that are given back at once, whatever `max_output_tokens` a request had."""


def reserved_tokens(prompt_tokens: int, max_output_tokens: int | None, *, wants_output: bool = True) -> int:
    if not wants_output:
        return prompt_tokens
    return prompt_tokens + (DEFAULT_OUTPUT_TOKENS if max_output_tokens is None else max_output_tokens)


@dataclass(frozen=True, slots=True)
class Level:
    """A bucket's limit, and the seconds until it is full."""

    per_minute: int
    seconds: float

    @property
    def remaining(self) -> int:
        unfilled = max(0.0, self.seconds) * self.per_minute / 60
        return max(0, math.floor(self.per_minute - unfilled + 1e-6))  # a float is a little off

    def without(self, units: int) -> "Level":
        return Level(self.per_minute, self.seconds + units * 60 / self.per_minute)

    def seconds_until(self, units: int) -> float:
        """Seconds until so many units can be taken, if no others are: 0 if they can be now."""
        return max(0.0, self.seconds - 60 + units * 60 / self.per_minute)


@dataclass(frozen=True, slots=True)
class _KnownLevel:
    per_minute: int
    full_at: float
    """Monotonic seconds, as all that follow."""
    refuses_until: float

    def level(self, now: float) -> Level:
        return Level(self.per_minute, max(0.0, self.full_at - now))


class RateReservation:
    """The request and the tokens that one request has taken from its caller's buckets."""

    def __init__(self, rates: "RateLimits", caller: Caller) -> None:
        self._rates = rates
        self._caller = caller
        self._tokens = 0

    def take_tokens(self, tokens: int) -> None:
        """Takes tokens in place of earlier ones. Raises RateLimited, RequestTooLarge, DatabaseError."""
        if self._tokens:
            self._rates.return_now(self._caller, Unused(tokens=self._tokens))
            self._tokens = 0
        self._rates.take(self._caller, requests=0, tokens=tokens)
        self._tokens = tokens

    def accepted(self) -> None:
        self._tokens = 0

    def give_back(self) -> None:
        """Gives back what was taken, now or as soon as the database answers."""
        self._rates.return_now(self._caller, Unused(1, self._tokens))


class RateLimits:
    """Thread-safe."""

    def __init__(self, database: Database, clock: Callable[[], float] = monotonic) -> None:
        self._database = database
        self._clock = clock
        self._lock = threading.Lock()
        self._levels: dict[Bucket, _KnownLevel] = {}
        self._unused: dict[tuple[str, str | None], Unused] = {}
        """Units to be given back, by tenant and key."""

    @contextmanager
    def reserving(self, caller: Caller) -> Iterator[RateReservation]:
        """Counts a request, and surrounds its preparation and acceptance: if the block raises, what was taken
        is given back. Raises RateLimited or DatabaseError.
        """
        self._check(caller)
        self.take(caller)
        reservation = RateReservation(self, caller)
        try:
            yield reservation
        except BaseException:
            reservation.give_back()
            raise

    def take(self, caller: Caller, *, requests: int = 1, tokens: int = 0) -> None:
        """Takes so many requests and tokens. Raises RateLimited, RequestTooLarge or DatabaseError."""
        demands = _demands(caller, "requests", requests) if requests else []
        if tokens:
            demands += _demands(caller, "tokens", tokens)
        for demand in demands:
            if demand.units > demand.per_minute:
                owner, kind = _owner(caller, demand.bucket), demand.bucket.kind
                raise RequestTooLarge(owner, kind, demand.per_minute, demand.units)
        if not demands:
            return
        taken = rate_buckets.take(self._database, demands)
        levels = [
            Level(demand.per_minute, seconds) for demand, seconds in zip(demands, taken.seconds, strict=True)
        ]
        if taken.is_taken:
            for demand, level in zip(demands, levels, strict=True):
                self._remember(demand.bucket, level.without(demand.units))
            return
        waits = [level.seconds_until(demand.units) for demand, level in zip(demands, levels, strict=True)]
        refused = waits.index(max(waits))
        for index, (demand, level) in enumerate(zip(demands, levels, strict=True)):
            refuses_others = index == refused and demand.bucket.kind == "requests"
            pause = min(_REFUSED_SECONDS, waits[index]) if refuses_others else 0.0
            self._remember(demand.bucket, level, pause)
        raise _refusal(caller, demands[refused], levels[refused])

    def _check(self, caller: Caller) -> None:
        """Raises RateLimited if a request of the caller has just been refused."""
        now = self._clock()
        for demand in _demands(caller, "requests", 1):
            known = self._levels.get(demand.bucket)
            if known is not None and known.per_minute == demand.per_minute and now < known.refuses_until:
                raise _refusal(caller, demand, known.level(now))

    def _remember(self, bucket: Bucket, level: Level, pause: float = 0.0) -> None:
        now = self._clock()
        newest = _KnownLevel(level.per_minute, now + level.seconds, now + pause)
        with self._lock:
            if len(self._levels) >= _MAX_LEVELS:
                self._levels = {key: known for key, known in self._levels.items() if known.full_at > now}
                if len(self._levels) >= _MAX_LEVELS:
                    self._levels.clear()
            self._levels[bucket] = newest

    def give_back(self, tenant: str, key_id: str | None, units: Unused) -> None:
        """Has units given back with the next `write_unused`."""
        with self._lock:
            unused = self._unused.get((tenant, key_id), Unused())
            self._unused[tenant, key_id] = Unused(
                unused.requests + units.requests, _bounded(unused.tokens + units.tokens)
            )

    def return_now(self, caller: Caller, units: Unused) -> None:
        """Gives back what a request of the caller has taken; while the database is away it is kept."""
        if any(units):
            self._write({(caller.tenant, caller.key_id): units})

    def write_unused(self) -> None:
        """Gives back what is to be given back. While the database is away it is kept."""
        with self._lock:
            unused, self._unused = self._unused, {}
        if unused:
            self._write(unused)

    def _write(self, unused: Mapping[tuple[str, str | None], Unused]) -> None:
        try:
            self._database.autocommit(partial(rate_buckets.give_back, unused=unused))
        except DatabaseError as error:
            log.warning("rate limits are settled later: %s", type(error).__name__)
            for (tenant, key_id), units in unused.items():
                self.give_back(tenant, key_id, units)

    def look(self, caller: Caller) -> None:
        """Reads the caller's levels. Raises DatabaseError."""
        demands = [*_demands(caller, "requests", 0), *_demands(caller, "tokens", 0)]
        if demands:
            taken = rate_buckets.take(self._database, demands)
            for demand, seconds in zip(demands, taken.seconds, strict=True):
                self._remember(demand.bucket, Level(demand.per_minute, seconds))

    def levels(self, caller: Caller) -> dict[Kind, Level]:
        """The levels of the caller's buckets as known here; of two of a kind, that with less remaining."""
        now = self._clock()
        levels: dict[Kind, Level] = {}
        for kind in KINDS:
            known = [self._levels.get(demand.bucket) for demand in _demands(caller, kind, 0)]
            if both := [bucket.level(now) for bucket in known if bucket is not None]:
                levels[kind] = min(both, key=lambda level: level.remaining)
        return levels

    def headers(self, caller: Caller) -> dict[str, str]:
        return rate_limit_headers(self.levels(caller))


def _bounded(units: int) -> int:
    """The units, as far as Postgres can count them; beyond a minute's limit more make no difference."""
    return max(-_MAX_UNITS, min(units, _MAX_UNITS))


def _demands(caller: Caller, kind: Kind, units: int) -> list[BucketDemand]:
    """So many units of each of the caller's buckets of this kind: its key's and its tenant's."""
    limits = ((caller.counted_as, caller.limits), ("", caller.settings.limits))
    return [
        BucketDemand(Bucket(caller.tenant, key_id, kind), units, per_minute)
        for key_id, owner in limits
        if (per_minute := owner.requests_per_minute if kind == "requests" else owner.tokens_per_minute)
        is not None
    ]


def _refusal(caller: Caller, demand: BucketDemand, level: Level) -> RateLimited:
    used = level.per_minute - level.remaining
    seconds = level.seconds_until(demand.units)
    kind = demand.bucket.kind
    return RateLimited(_owner(caller, demand.bucket), kind, level.per_minute, used, demand.units, seconds)


def _owner(caller: Caller, bucket: Bucket) -> str:
    return f"API key {caller.key_id}" if bucket.key_id else f"tenant {bucket.tenant}"


def rate_limit_headers(levels: Mapping[Kind, Level]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for kind, level in levels.items():
        headers[f"x-ratelimit-limit-{kind}"] = str(level.per_minute)
        headers[f"x-ratelimit-remaining-{kind}"] = str(level.remaining)
        headers[f"x-ratelimit-reset-{kind}"] = duration(level.seconds)
    return headers


def duration(seconds: float) -> str:
    """A duration as OpenAI writes it: `17ms`, `8.64s`, `6m0s`."""
    milliseconds = math.ceil(seconds * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    shown = f"{rest / 1000:.3f}".rstrip("0").rstrip(".")
    return f"{minutes}m{shown}s" if minutes else f"{shown}s"
