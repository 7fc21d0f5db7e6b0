"""Judges attempts: received or not, the time of the next one, whether the endpoint wants no more. Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

MAX_PAUSE_SECONDS = 8 * 3600.0
"""The longest pause between two attempts."""
MAX_RETRY_AFTER_SECONDS = 3600.0
"""The longest `Retry-After` of a receiver that counts; a longer one counts as this."""
_GONE = 410
_THROTTLING = frozenset({429, 502, 503, 504})
_MAX_DOUBLINGS = 32


@dataclass(frozen=True, slots=True)
class ReceiverAnswer:
    """The receiver's answer to an attempt: an HTTP status, or why there is none."""

    status: int | None
    retry_after: str | None = None
    """The header's text."""
    error: str = ""
    """A sentence, if there is no status."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The consequences of a receiver's answer."""

    error: str | None
    """Why the attempt failed; None if the event was received."""
    pause_seconds: float = 0.0
    """Until the next attempt of this delivery."""
    throttle_seconds: float = 0.0
    """The time for which the receiver asked for nothing at all."""
    is_gone: bool = False
    """The endpoint wants no events any more."""


def judge(
    answer: ReceiverAnswer, attempt: int, first_pause: float, now: datetime, random: Callable[[], float]
) -> Verdict:
    """`attempt` counts from 1; `random` returns numbers from 0 to 1, which spread attempts over time.

    Only 200 to 299 is receipt. Redirects are not followed: they are failures, as OpenAI's are.
    """
    status = answer.status
    if status is not None and 200 <= status < 300:
        return Verdict(None)
    pause = pause_before_next(attempt, first_pause, random)
    if status is None:
        return Verdict(answer.error, pause)
    throttle = retry_after_seconds(answer.retry_after, now) if status in _THROTTLING else 0.0
    return Verdict(f"HTTP status {status}", max(pause, throttle), throttle, is_gone=status == _GONE)


def pause_before_next(attempt: int, first_pause: float, random: Callable[[], float]) -> float:
    """Seconds after so many attempts: doubled each time up to MAX_PAUSE_SECONDS, less up to a quarter."""
    longest = min(first_pause * 2.0 ** min(attempt - 1, _MAX_DOUBLINGS), MAX_PAUSE_SECONDS)
    return longest * (1 - random() / 4)


def retry_after_seconds(header: str | None, now: datetime) -> float:
    """The seconds that a `Retry-After` asks for, at most MAX_RETRY_AFTER_SECONDS; 0 without a valid one."""
    text = (header or "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:10]), MAX_RETRY_AFTER_SECONDS)
    try:
        when = parsedate_to_datetime(text)
    except (ValueError, IndexError, OverflowError):  # a year or a zone of twenty digits overflows
        return 0.0
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return min(max((when - now).total_seconds(), 0.0), MAX_RETRY_AFTER_SECONDS)
