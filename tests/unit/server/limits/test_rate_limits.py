from typing import Any, cast

import pytest
from sqlalchemy.exc import OperationalError

from server.limits.rate_limits import Level, RateLimits, duration, rate_limit_headers
from server.store.administration.rate_buckets import Unused


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0ms"),
        (0.0165, "17ms"),
        (0.9995, "1s"),
        (1, "1s"),
        (8.64, "8.64s"),
        (59.9999, "1m0s"),
        (60, "1m0s"),
        (62.5, "1m2.5s"),
        (360, "6m0s"),
    ],
)
def test_a_duration_is_written_as_openai_does(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def test_only_what_is_limited_has_headers() -> None:
    assert rate_limit_headers({}) == {}
    assert rate_limit_headers({"tokens": Level(100, 1.5)}) == {
        "x-ratelimit-limit-tokens": "100",
        "x-ratelimit-remaining-tokens": "97",
        "x-ratelimit-reset-tokens": "1.5s",
    }


def test_a_level_says_what_remains_and_when_more_does() -> None:
    level = Level(100, 0).without(70)
    assert (level.remaining, level.seconds) == (30, 42)
    assert level.seconds_until(30) == 0
    assert level.seconds_until(100) == 42
    in_debt = Level(100, 90)
    assert (in_debt.remaining, in_debt.seconds_until(10)) == (0, 36)


class AwayDatabase:
    """Counts what is tried, and fails until it is `here`."""

    def __init__(self) -> None:
        self.tries = 0
        self.here = False

    def autocommit(self, work: Any) -> None:
        self.tries += 1
        if not self.here:
            raise OperationalError("away", None, Exception())
        assert work.keywords == {"unused": {("acme", "k1"): Unused(tokens=70)}}


def test_what_is_given_back_waits_for_the_database() -> None:
    database = AwayDatabase()
    limits = RateLimits(cast("Any", database))
    limits.write_unused()
    limits.give_back("acme", "k1", Unused(tokens=100))
    limits.write_unused()
    limits.give_back("acme", "k1", Unused(tokens=-30))
    database.here = True
    limits.write_unused()
    limits.write_unused()
    assert database.tries == 2
