"""One event as server-sent-event bytes. Pure."""

from server.wire.events import Event, event_type


def frame(event: Event, rendered: bytes) -> bytes:
    """`event:` and `data:` lines and the blank line, in one piece; LF only, never an `id:`."""
    return b"event: " + event_type(event).encode() + b"\ndata: " + rendered + b"\n\n"
