"""How long a response is kept: as its request says, else as the setting says. Pure."""

from datetime import timedelta

from server.protocol.responses.request import CreateResponse
from server.protocol.responses.response import Echo

UNSTORED = timedelta(minutes=10)
"""How long a background response that is not to be stored can be read after its end; OpenAI's value."""
_MOST_UNSTORED = timedelta(days=1)
"""For one whose end is not written in the usual way."""


def lifetime_after_end(echo: Echo) -> timedelta | None:
    """From a response's end until it may be purged; None leaves it to `lifetime`."""
    return UNSTORED if echo.background and not echo.store else None


def lifetime(request: CreateResponse, retention_days: int) -> timedelta | None:
    """From a response's creation until it may be purged; None keeps it for ever."""
    if request.expires_after is not None:
        return timedelta(seconds=request.expires_after.seconds)
    if request.background and request.store is False:
        return _MOST_UNSTORED
    return timedelta(days=retention_days) if retention_days else None
