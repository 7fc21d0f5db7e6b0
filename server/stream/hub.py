"""Who follows which running response: committed frames come from the recorder, readers wait on the loop.

A channel keeps the tail of its response's frames and every reader only a position in it. A reader that falls
behind the tail reads on from the store, so a slow client costs no memory. All of a channel's state is changed
on the loop; other threads go through `call_soon_threadsafe`, once per commit and not once per event.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from uuid import UUID

TAIL_FRAMES = 1024
"""How many frames a stored response's channel keeps for its readers."""


@dataclass(frozen=True, slots=True)
class Published:
    """What one commit added to one response."""

    response_id: UUID
    frames: tuple[bytes, ...]
    final: bytes | None
    """The final response's JSON, once it has ended."""


class Channel:
    """The frames of one running response, and the readers that wait for more."""

    def __init__(self, *, stored: bool, on_abandoned: Callable[[], None], grace: float) -> None:
        """`on_abandoned` is called on the loop when the last reader has been gone for `grace` seconds."""
        self.final: bytes | None = None
        self._stored = stored
        self._frames: deque[bytes] = deque()
        self._first = 0
        self._wakers: set[asyncio.Event] = set()
        self._on_abandoned = on_abandoned
        self._grace = grace if stored else 0.0
        self._abandonment: asyncio.TimerHandle | None = None

    @property
    def ended(self) -> bool:
        return self.final is not None

    def after(self, position: int) -> list[bytes] | None:
        """The frames from that sequence number on; None when they must be read from the store."""
        if position < self._first:
            return None
        return [self._frames[index] for index in range(position - self._first, len(self._frames))]

    def join(self) -> asyncio.Event:
        """A reader's event, set whenever there is more."""
        if self._abandonment is not None:
            self._abandonment.cancel()
        waker = asyncio.Event()
        self._wakers.add(waker)
        return waker

    def leave(self, waker: asyncio.Event) -> None:
        self._wakers.discard(waker)
        if not self._wakers and not self.ended:
            self._abandonment = asyncio.get_running_loop().call_later(self._grace, self._abandon)

    def _abandon(self) -> None:
        if not self._wakers and not self.ended:
            self._on_abandoned()

    def add(self, published: Published) -> None:
        self._frames.extend(published.frames)
        self.final = published.final
        while self._stored and len(self._frames) > TAIL_FRAMES:
            self._frames.popleft()
            self._first += 1
        for waker in self._wakers:
            waker.set()


class Hub:
    """The channels of this process."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._channels: dict[UUID, Channel] = {}

    def open(
        self, response_id: UUID, *, stored: bool, grace: float, on_abandoned: Callable[[], None]
    ) -> Channel:
        """The channel of a response that begins here. Any thread, before its first `publish`."""
        channel = Channel(stored=stored, on_abandoned=on_abandoned, grace=grace)
        self._channels[response_id] = channel
        return channel

    def find(self, response_id: UUID) -> Channel | None:
        """The channel of a response that runs here, else None."""
        return self._channels.get(response_id)

    def follows(self, response_id: UUID) -> bool:
        """Whether frames of this response are wanted. Any thread."""
        return response_id in self._channels

    def publish(self, batch: Iterable[Published]) -> None:
        """Tells the readers of one commit. Any thread."""
        told = list(batch)
        if told and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._deliver, told)

    def _deliver(self, batch: list[Published]) -> None:
        for published in batch:
            channel = self._channels.get(published.response_id)
            if channel is None:
                continue
            channel.add(published)
            if channel.ended:
                del self._channels[published.response_id]
