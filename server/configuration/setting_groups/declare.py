"""`setting`: declares a setting as a dataclass field with a help text and a range."""

from dataclasses import field
from functools import partial
from typing import Any

MAX_SECONDS = 365 * 24 * 3600.0
"""A year: the longest time of a setting. Longer ones overflow timeouts of the kernel and of Postgres."""
MAX_NUMBER = 10**15
"""The most of a count or of bytes without a bound of its own: larger integers overflow in Postgres and C."""


def setting(default: object, help_text: str, *, low: float | None = None, high: float | None = None) -> Any:
    """A field with a default, its sentence in help texts, and the inclusive range of a number."""
    if isinstance(default, float) and high is None:
        high = MAX_SECONDS
    return field(default=default, metadata={"help": help_text, "low": low, "high": high})


days = partial(setting, low=0, high=36500)
