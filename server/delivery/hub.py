"""Who follows which running response: committed frames come from the recorder if it runs here, else from the
follower; readers wait on the loop.

A channel keeps the tail of its response's frames and every reader only a position in it. A reader that falls
behind the tail reads on from the store, so a slow client costs no memory. All of a channel's state is changed
on the loop; other threads go through `call_soon_threadsafe`, once per commit and not once per event.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from uuid import UUID
from weakref import WeakValueDictionary

from server.store.log.events import Subscription

Place = tuple[str, UUID]
"""A response's key: its tenant's name and its own id."""
TAIL_FRAMES = 1024
"""How many frames a stored response's channel keeps for its readers."""
FIRST_READER_SECONDS = 5.0
"""How long a response at least waits for the reader that it is made for."""


@dataclass(frozen=True, slots=True)
class Published:
    """What one commit added to one response."""

    response_id: UUID
    first: int
    """The sequence number of the first of `frames`; of the next one to come if there are none."""
    frames: tuple[bytes, ...]
    final: bytes | None
    """The final response's JSON, once it has ended."""
    gone: bool = False
    """It was deleted: nothing more will come, and there is no final response."""


class Channel:
    """The frames of one running response, and the readers that wait for more.

    Two sources may tell the same frames: each is kept once, by its number.
    """

    def __init__(
        self,
        *,
        stored: bool,
        start: int | None = None,
        on_join: Callable[[], None] | None = None,
    ) -> None:
        """`start` is the number of the first frame to come; without one the first `add` says it.

        `on_join` is called with every reader.
        """
        self.final: bytes | None = None
        self.gone = False
        self.ends_unread = False
        """It is watched, and whoever runs it ends it when nobody reads it."""
        self.next_seq = start
        """The number after the last frame. Any thread."""
        self._stored = stored
        self._frames: deque[bytes] = deque()
        self._wakers: set[asyncio.Event] = set()
        self._on_join = on_join
        self._on_abandoned: Callable[[], None] | None = None
        self._grace = 0.0
        self._abandonment: asyncio.TimerHandle | None = None

    @property
    def ended(self) -> bool:
        return self.final is not None or self.gone

    @property
    def has_readers(self) -> bool:
        """Any thread."""
        return bool(self._wakers)

    def after(self, position: int) -> list[bytes] | None:
        """The frames from that sequence number on; None when they must be read from the store."""
        if self.next_seq is None:
            return None
        skipped = position - (self.next_seq - len(self._frames))
        return list(islice(self._frames, skipped, None)) if skipped >= 0 else None

    def join(self, waker: asyncio.Event | None = None) -> asyncio.Event:
        """A reader's event, set whenever there is more; its own if it brings one."""
        if self._abandonment is not None:
            self._abandonment.cancel()
        waker = waker or asyncio.Event()
        self._wakers.add(waker)
        if self._on_join is not None:
            self._on_join()
        return waker

    def leave(self, waker: asyncio.Event) -> None:
        self._wakers.discard(waker)
        self._await_reader(self._grace if self._stored else 0.0)

    def end_without_readers(self, on_abandoned: Callable[[], None], grace: float) -> None:
        """`on_abandoned` is called on the loop when the last reader has been gone for `grace` seconds, or at
        once if nothing is stored that it could come back for.
        """
        self._on_abandoned, self._grace = on_abandoned, grace

    def await_first_reader(self) -> None:
        """Lets the response be given up if nobody ever joins."""
        self._await_reader(max(self._grace, FIRST_READER_SECONDS))

    def _await_reader(self, seconds: float) -> None:
        if self._on_abandoned is not None and not self._wakers and not self.ended:
            self._abandonment = asyncio.get_running_loop().call_later(seconds, self._abandon)

    def _abandon(self) -> None:
        if self._on_abandoned is not None and not self._wakers and not self.ended:
            self._on_abandoned()

    def begin_at(self, position: int) -> None:
        """Notes the number of the next frame, unless some have come already."""
        if self.next_seq is None:
            self.next_seq = position

    def add(self, published: Published) -> None:
        """Keeps what is new; after a gap, which only the store can fill, the tail begins anew."""
        if self.ended:
            return
        if self.next_seq is None or published.first > self.next_seq:
            self._frames.clear()
            self.next_seq = published.first
        fresh = published.frames[self.next_seq - published.first :]
        self._frames.extend(fresh)
        while self._stored and len(self._frames) > TAIL_FRAMES:
            self._frames.popleft()
        self.next_seq += len(fresh)
        self.final, self.gone = published.final, published.gone
        for waker in self._wakers:
            waker.set()


class Hub:
    """The channels of this process: at most one of each response.

    One that was opened for a run is held until its response ends. Any other lives as long as somebody has it:
    whoever has got it from `watch` and not joined yet keeps it the one that all others get too.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.on_watch: Callable[[], None] = lambda: None
        """Called when a watched response gets a reader; on the loop, so it must not wait."""
        self._loop = loop
        self._making = threading.Lock()
        self._channels: WeakValueDictionary[UUID, Channel] = WeakValueDictionary()
        self._held: dict[UUID, Channel] = {}
        self._watched: WeakValueDictionary[Place, Channel] = WeakValueDictionary()
        self._joined: set[Place] = set()

    def open(
        self, response_id: UUID, *, stored: bool, grace: float, on_abandoned: Callable[[], None]
    ) -> Channel:
        """The channel of a response that begins here and ends without readers.

        Any thread, before its first `publish`. One that runs without readers too, and perhaps elsewhere, has
        no such channel: its creator watches it like everybody. Whoever has found the response in the store
        already, and watches it, keeps its channel, which becomes this one.
        """
        with self._making:
            channel = self._channels.get(response_id)
            if channel is None:
                channel = Channel(stored=stored, start=0)
            self._channels[response_id] = self._held[response_id] = channel
        channel.end_without_readers(on_abandoned, grace)
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(channel.await_first_reader)
        return channel

    def watch(self, tenant: str, response_id: UUID, *, ends_unread: bool = False) -> Channel:
        """The channel of a stored response of this tenant, which runs here, elsewhere or nowhere yet.

        One that `ends_unread` goes on only while it has readers. Readers of a new one look into the store
        until `begin_at`, or until something is published. A new response is watched before others can claim
        it, because what they publish earlier reaches no reader here. Any thread.
        """
        with self._making:
            channel = self._channels.get(response_id)
            if channel is None:
                place = (tenant, response_id)
                channel = Channel(stored=True, on_join=partial(self._tell_of_watch, place))
                self._channels[response_id] = self._watched[place] = channel
            channel.ends_unread |= ends_unread
            return channel

    def begin_at(self, channel: Channel, position: int) -> None:
        """Says that readers of a watched channel know all frames before `position`. Any thread.

        Only what was read from the store after the channel was watched may be counted: frames committed
        between a read and a later `watch` are in neither.
        """
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(channel.begin_at, position)

    def release(self, tenant: str, response_id: UUID) -> None:
        """The run here goes on elsewhere or not at all: readers of the channel that was opened for it get
        the rest as those who watch it do. Any thread.
        """
        place = (tenant, response_id)
        with self._making:
            channel = self._held.pop(response_id, None)
            if channel is None or channel.ended:
                return
            self._watched[place] = channel
        self._tell_of_watch(place)

    def _tell_of_watch(self, place: Place) -> None:
        with self._making:
            self._joined.add(place)
        self.on_watch()

    def joined(self) -> set[Place]:
        """Watched responses that got a reader since this was last asked. Any thread, but one."""
        with self._making:
            found, self._joined = self._joined, set()
            return found

    def watched(self, among: Iterable[Place] | None = None) -> list[Subscription]:
        """What somebody waits for and nobody here may tell of, of these or of all. Any thread."""
        with self._making:
            if among is None:
                channels = list(self._watched.items())
            else:
                found = ((place, self._watched.get(place)) for place in among)
                channels = [(place, channel) for place, channel in found if channel is not None]
        return [
            Subscription(tenant, response_id, channel.next_seq)
            for (tenant, response_id), channel in channels
            if channel.has_readers and not channel.ended
        ]

    def reading(self) -> list[UUID]:
        """Watched responses that would end without their readers here, wherever they run. Any thread."""
        with self._making:
            channels = list(self._watched.items())
        return [
            response_id
            for (_, response_id), channel in channels
            if channel.ends_unread and channel.has_readers and not channel.ended
        ]

    def is_unread(self, response_id: UUID) -> bool:
        """Whether it was opened for a run here, which has not ended, and has no readers. Any thread."""
        channel = self._held.get(response_id)
        return channel is not None and not channel.has_readers and not channel.ended

    def running(self, response_id: UUID) -> Channel | None:
        """The channel that was opened for a run here, until that has ended. Any thread."""
        return self._held.get(response_id)

    def has_channel(self, response_id: UUID) -> bool:
        """Whether frames of this response are wanted. Any thread."""
        return response_id in self._channels

    def publish(self, batch: Iterable[Published]) -> None:
        """Tells the readers of what was committed. Any thread."""
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
                with self._making:
                    self._channels.pop(published.response_id, None)
                    self._held.pop(published.response_id, None)
