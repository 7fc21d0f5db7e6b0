import argparse
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from server.caller import Limits
from server.cli.audit import read_age
from server.cli.option_types import (
    add_limit_options,
    amount,
    changed,
    count,
    described_limits,
    duration,
    moment,
    names,
    or_none,
    whole_number,
)
from server.configuration import settings
from server.store.administration.stored_keys import KeyProperties


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (duration, "90s", timedelta(seconds=90)),
        (duration, "15m", timedelta(minutes=15)),
        (duration, "24h", timedelta(days=1)),
        (duration, "30d", timedelta(days=30)),
        (duration, "2w", timedelta(days=14)),
        (count, "600", 600),
        (amount, "2.50", Decimal("2.50")),
        (names, " a,b ,,a", frozenset({"a", "b"})),
        (moment, "2026-12-01", datetime(2026, 12, 1, tzinfo=UTC)),
        (moment, "2026-12-01T09:00+00:00", datetime(2026, 12, 1, 9, tzinfo=UTC)),
        (or_none(count), "none", None),
        (or_none(count), "1", 1),
    ],
)
def test_an_option_is_read(read: Callable[[str], Any], text: str, value: object) -> None:
    assert read(text) == value


@pytest.mark.parametrize(
    ("read", "text"),
    [
        *((duration, text) for text in ("", "d", "1", "1y", "-1d", "1.5h", "999999999w", "\u0661d")),
        *((count, text) for text in ("", "-1", "1.0", "1_0", "x", "9" * 19)),
        *((amount, text) for text in ("", "x", "nan", "inf")),
        *((moment, text) for text in ("", "tomorrow", "2026-13-01")),
    ],
)
def test_what_cannot_be_read_is_wrong_usage(read: Callable[[str], Any], text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"must be|is too long"):
        read(text)


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_limit_options(parser)
    return parser.parse_args(arguments)


def test_only_what_is_given_is_changed() -> None:
    before = KeyProperties(name="n", limits=Limits(requests_per_minute=1, budget_tokens=2))
    assert changed(before, parse()) == before
    options = parse("--rpm", "none", "--tpm", "9", "--budget-period", "day")
    after = changed(before, options)
    assert after == KeyProperties(
        name="n", limits=Limits(tokens_per_minute=9, budget_tokens=2, budget_period="day")
    )


def test_no_option_is_taken_for_a_setting_of_the_server() -> None:
    known = {setting.name for setting in settings.settings()}
    assert known.isdisjoint(vars(parse("--rpm", "1", "--budget-cost", "1")))


def test_limits_are_described_in_words() -> None:
    assert described_limits(Limits()) == ""
    limits = Limits(60, 1000, 5, Decimal("1E+2"), "total")
    assert (
        described_limits(limits) == "60 requests/min, 1000 tokens/min, 5 tokens in all, costs of 100 in all"
    )


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (duration, "999999999w"),
        (duration, "36501d"),
        (read_age, "999999d"),
        (read_age, "\u0663d"),
        (moment, "0001-01-01T00:00+14:00"),
        (moment, "9999-12-31T23:59-14:00"),
        (whole_number(1, 9), "00000000001" + "9" * 30),
        (whole_number(1, 9), "\u0663"),
        (whole_number(1, 9), "-1"),
        (whole_number(1, 9), "1\n"),
        (count, "1" + "0" * 30),
        (amount, "NaN"),
    ],
)
def test_a_value_that_nothing_could_hold_is_refused(read: Callable[[str], Any], text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        read(text)
