"""How long a response is kept: as its request says, else as the setting says. Pure."""

from datetime import timedelta

from server.wire.request import CreateResponse


def lifetime(request: CreateResponse, retention_days: int) -> timedelta | None:
    """From a response's creation until it may be purged; None keeps it for ever."""
    if request.expires_after is not None:
        return timedelta(seconds=request.expires_after.seconds)
    return timedelta(days=retention_days) if retention_days else None
