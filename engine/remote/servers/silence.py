"""How long a call waits for a server that sends it nothing: `judge`. Pure.

A server sends nothing for a call that waits in its queue, or that it has interrupted for others, for as long
as these take. So a call without an answer says nothing about a server that goes on with other calls; the
server hangs if none of its calls has an answer.
"""

from dataclasses import dataclass
from math import inf

from engine.remote.interface import EngineFault

COMMENT_SILENCES = 4
"""Silences for which a server may send comments, and no chunk of any call. llama-server sends a comment every
30 s beside a computation of one batch, whether that goes on or not, and a chunk after each batch, of 2,048
tokens by default. A processor may take longer than one silence for such a batch of a large model."""
RECHECK_SECONDS = 5.0
"""Between two looks at a silent call of a server that goes on; as often as its load is asked for."""


@dataclass(slots=True, eq=False)
class ServerSigns:
    """What shows that a server is at work, in seconds of `time.monotonic`."""

    chunk_at: float = -inf
    """When it last sent a chunk, to any call of ours."""
    unqueued_from: float = inf
    """The first of its reports in a row, the last one included, that no request waits there."""
    unqueued_until: float = -inf
    """The last of them; infinitely long ago if the last report says something else, or not how many wait."""

    def report(self, waiting: int | None, now: float) -> None:
        """The server answered how many requests wait there."""
        if waiting == 0:
            self.unqueued_from, self.unqueued_until = min(self.unqueued_from, now), now
        else:
            self.unqueued_from, self.unqueued_until = inf, -inf


@dataclass(slots=True, eq=False)
class CallSigns:
    """When a call was last heard of; first its start."""

    chunk_at: float
    byte_at: float
    """Comments and the head of an answer included."""


def judge(call: CallSigns, server: ServerSigns, silence: float, now: float) -> EngineFault | None:
    """Why the call ends now; None if it waits on.

    `failed` is a fault of the server: no call there has had a chunk for so long. `lost` is none: the server
    goes on with others, and has said for so long that no request waits there; it has forgotten this one.
    """
    if now >= _end(call, server, silence):
        return EngineFault("failed", f"it does not answer (silence of {silence:g} s)")
    unqueued = server.unqueued_until - max(server.unqueued_from, call.chunk_at)
    if unqueued >= silence and server.chunk_at > call.chunk_at:
        return EngineFault("lost", f"it goes on with other calls, and has left one out for {silence:g} s")
    return None


def next_look(call: CallSigns, server: ServerSigns, silence: float, now: float) -> float:
    """When `judge` may say something else, if nothing is heard until then."""
    return min(_end(call, server, silence), max(call.chunk_at + silence, now + RECHECK_SECONDS))


def _end(call: CallSigns, server: ServerSigns, silence: float) -> float:
    chunk_at = max(call.chunk_at, server.chunk_at)
    return min(max(chunk_at, call.byte_at) + silence, chunk_at + COMMENT_SILENCES * silence)
