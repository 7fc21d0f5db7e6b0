import argparse
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from server.cli.options import duration, moment_or_duration, names, whole_number


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (duration, "90s", timedelta(seconds=90)),
        (duration, "15m", timedelta(minutes=15)),
        (duration, "24h", timedelta(days=1)),
        (duration, "30d", timedelta(days=30)),
        (duration, "2w", timedelta(days=14)),
        (whole_number(0, 999), "600", 600),
        (whole_number(-9, 9), "-1", -1),
        (names, " a,b ,,a", ["a", "b"]),
        (moment_or_duration, "30d", timedelta(days=30)),
        (moment_or_duration, "2026-12-01", datetime(2026, 12, 1, tzinfo=UTC)),
        (moment_or_duration, "2026-12-01T09:00+00:00", datetime(2026, 12, 1, 9, tzinfo=UTC)),
    ],
)
def test_an_option_is_read(read: Callable[[str], Any], text: str, value: object) -> None:
    assert read(text) == value


NOT_DURATIONS = ("", "d", "1", "1y", "-1d", "1.5h", "999999999w", "36501d", "\u0661d")
NOT_MOMENTS = ("", "tomorrow", "2026-13-01", "0001-01-01T00:00+14:00", "9999-12-31T23:59-14:00")
NOT_NUMBERS = ("", "-1", "0", "10", "1.0", "1_0", "x", "00000000001" + "9" * 30, "\u0663", "1\n")


@pytest.mark.parametrize(
    ("read", "text"),
    [
        *((duration, text) for text in NOT_DURATIONS),
        *((moment_or_duration, text) for text in NOT_MOMENTS),
        *((whole_number(1, 9), text) for text in NOT_NUMBERS),
    ],
)
def test_what_cannot_be_read_is_wrong_usage(read: Callable[[str], Any], text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="must be"):
        read(text)
