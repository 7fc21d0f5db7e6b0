"""OpenAI's `x-ratelimit-…` headers, and durations as they have them. Pure."""

import math
from collections.abc import Mapping

from server.quotas.window_share import Standing


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
