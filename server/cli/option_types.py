"""Types of command options: durations, whole numbers, names."""

import argparse
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

_DURATION = re.compile(r"([0-9]{1,9})([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
MAX_DURATION = timedelta(days=36500)
_FIRST, _LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(3000, 1, 1, tzinfo=UTC)
DURATIONS = "90m, 24h, 7d"
"""Examples, for help texts."""


def duration(text: str) -> timedelta:
    """A duration such as 90s, 15m, 24h, 30d or 2w."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError("must be a number with s, m, h, d or w, such as 24h or 30d")
    unit = timedelta(**{_UNITS[match[2]]: 1})
    if int(match[1]) > MAX_DURATION / unit:
        raise argparse.ArgumentTypeError(f"must be at most {MAX_DURATION.days}d")
    return unit * int(match[1])


def moment_or_duration(text: str) -> datetime | timedelta:
    """A time in ISO 8601, without a zone in UTC; or a duration."""
    if _DURATION.fullmatch(text):
        return duration(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            "must be a time such as 2026-12-01 or 2026-12-01T09:00Z, or a duration such as 24h or 30d"
        ) from None
    time = time if time.tzinfo else time.replace(tzinfo=UTC)
    if not _FIRST <= time < _LAST:
        raise argparse.ArgumentTypeError("must be a time from 1970 to 2999")
    return time


def whole_number(low: int, high: int, unit: str = "") -> Callable[[str], int]:
    """The type of whole numbers from `low` to `high`, in ASCII digits."""

    def read(text: str) -> int:
        digits = text.removeprefix("-") if low < 0 else text
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 18 and low <= int(text) <= high):
            raise argparse.ArgumentTypeError(f"must be a whole number{unit} from {low} to {high}")
        return int(text)

    return read


def names(text: str) -> list[str]:
    """Names with commas between them."""
    return sorted({name for part in text.split(",") if (name := part.strip())})
