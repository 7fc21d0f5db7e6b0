"""How long a response is stored: as its request says, or as the `retention_days` setting says. Pure."""

from datetime import timedelta

from server.protocol.responses.request import CreateResponse
from server.protocol.responses.response import Echo

UNSTORED = timedelta(minutes=10)
"""How long a background response with `store: false` can be read after its end; OpenAI's value."""
_MAX_UNSTORED = timedelta(days=1)
"""From its creation, for one whose end is not written in the usual way."""


def lifetime_after_end(echo: Echo) -> timedelta | None:
    """The time from a response's end until it may be purged; None if `lifetime` decides."""
    return UNSTORED if echo.background and not echo.store else None


def lifetime(request: CreateResponse, retention_days: int) -> timedelta | None:
    """The time from a response's creation until it may be purged; None if it is kept for ever."""
    if request.expires_after is not None:
        return timedelta(seconds=request.expires_after.seconds)
    if request.background and request.store is False:
        return _MAX_UNSTORED
    return timedelta(days=retention_days) if retention_days else None
