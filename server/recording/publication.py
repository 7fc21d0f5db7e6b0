"""A committed update as its readers receive it."""

import msgspec

from server.delivery.hub import Published
from server.protocol.responses.events import frames
from server.recording.messages import RunUpdate


def published(update: RunUpdate) -> Published:
    """The frames of an update's events, of which there is one at least, and the final response if it ends.

    Raises any error of encoding.
    """
    run = update.run
    encoded = frames(run.facts.id, update.events, run.facts.attempt if run.stored else None)
    final = msgspec.json.encode(run.final) if run.final is not None else None
    return Published(run.facts.id, update.events[0].sequence_number, encoded, final)
