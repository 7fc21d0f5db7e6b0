"""Live streams: the hub's channels of committed frames, the readers that wait on them, responses without any.
Frames come from the recorder if the response runs here, else from the follower. A channel keeps the tail of
its response's frames, and a reader only a position: behind the tail it continues from the store, so a slow
client costs no memory. Channels change on the event loop only; others use `call_soon_threadsafe`, once per
commit.

`Abandonment` cancels foreground responses that lost their last reader. Replicas publish with each heartbeat
what they read elsewhere, so it first waits for as long as one takes, and looks that up.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice
from time import monotonic
from typing import NamedTuple
from uuid import UUID
from weakref import WeakValueDictionary

from server.protocol.responses.events import same_event
from server.store.log_read import Subscription

SubscriptionKey = tuple[str, UUID]
"""The tenant and the id of a response."""
TAIL_FRAMES = 1024
"""The frames that the channel of a stored response keeps."""
FIRST_READER_SECONDS = 5.0
"""The minimum time that a foreground response waits for its first reader."""

GRACE_SECONDS = 2.5
"""Replicas publish their readers each second: after this time two heartbeats have arrived."""


class Published(NamedTuple):
    """Frames that one commit added to one response. A tuple: there is one for each commit and response."""

    response_id: UUID
    first: int
    """The sequence number of the first of `frames`; of the next one to come if there are none."""
    frames: tuple[bytes, ...]
    final: bytes | None
    """The final response's JSON, once it has ended."""
    gone: bool = False
    """The response was deleted: nothing more will come, and there is no final response."""


class Channel:
    """The frames of one running response, each kept once though recorder and follower may both add it."""

    def __init__(
        self,
        *,
        stored: bool,
        start: int | None = None,
        on_join: Callable[[], None] | None = None,
        tail_frames: int = TAIL_FRAMES,
    ) -> None:
        """`start` is the sequence number of the first frame; None if the first `add` determines it.

        `on_join` is called when a reader joins. If it is `stored`, it keeps its last `tail_frames`.
        """
        self.final: bytes | None = None
        self.gone = False
        self.forks = 0
        """How often numbers of frames came again with other frames: readers then compare theirs with the
        store."""
        self.ends_unread = False
        """The response is in the foreground: the replica that runs it cancels it without readers."""
        self.next_seq = start
        """The sequence number after the last frame. Any thread."""
        self._stored = stored
        self._tail_frames = tail_frames
        self._frames: deque[bytes] = deque()
        self._wakers: set[asyncio.Event] = set()
        self._on_join = on_join
        self._on_abandoned: Callable[[], None] | None = None
        self._had_reader = False
        """A reader has joined since `end_without_readers`."""
        self._grace = 0.0
        self._abandonment: asyncio.TimerHandle | None = None

    @property
    def ended(self) -> bool:
        return self.final is not None or self.gone

    @property
    def readers(self) -> int:
        """Any thread."""
        return len(self._wakers)

    def after(self, position: int) -> list[bytes] | None:
        """The frames from that sequence number on; None if they have to be read from the store."""
        if self.next_seq is None or (count := self.next_seq - position) > len(self._frames):
            return None
        if count == 1:  # as for a reader that keeps up
            return [self._frames[-1]]
        # From the end, because a deque finds its middle frame by frame.
        return list(islice(reversed(self._frames), max(0, count)))[::-1]

    def join(self, waker: asyncio.Event | None = None) -> asyncio.Event:
        """Adds a reader; returns its event (`waker` if given), which is set whenever there are new frames."""
        if self._abandonment is not None:
            self._abandonment.cancel()
        waker = waker or asyncio.Event()
        self._wakers.add(waker)
        self._had_reader = True
        if self._on_join is not None:
            self._on_join()
        return waker

    def leave(self, waker: asyncio.Event) -> None:
        self._wakers.discard(waker)
        if self._had_reader:
            self._await_reader(self._grace if self._stored else 0.0)
        else:  # it had joined a prepared channel, and its response's own reader is still to come
            self.await_first_reader()

    def end_without_readers(self, on_abandoned: Callable[[], None], grace: float) -> None:
        """`on_abandoned` is called on the loop when the last reader has been gone for `grace` seconds; at
        once if the response is not stored, because then no reader can come back.
        """
        self._on_abandoned, self._grace, self._had_reader = on_abandoned, grace, False

    def await_first_reader(self) -> None:
        self._await_reader(max(self._grace, FIRST_READER_SECONDS))

    def _await_reader(self, seconds: float) -> None:
        if self._on_abandoned is not None and not self._wakers and not self.ended:
            self._abandonment = asyncio.get_running_loop().call_later(seconds, self._abandon)

    def _abandon(self) -> None:
        if self._on_abandoned is not None and not self._wakers and not self.ended:
            self._on_abandoned()

    def begin_at(self, position: int) -> None:
        """Sets the sequence number of the next frame, unless frames were added before."""
        if self.next_seq is None:
            self.next_seq = position

    def add(self, published: Published) -> None:
        """Adds new frames. After a fork, and a gap, which only the store can fill, the tail starts over."""
        if self.ended:
            return
        forked = self._is_forked_by(published)
        self.forks += forked
        if self.next_seq is None or forked or published.first > self.next_seq:
            self._frames.clear()
            self.next_seq = published.first
        skipped = self.next_seq - published.first
        fresh = published.frames[skipped:] if skipped else published.frames
        self._frames.extend(fresh)
        while self._stored and len(self._frames) > self._tail_frames:
            self._frames.popleft()
        self.next_seq += len(fresh)
        self.final, self.gone = published.final, published.gone
        for waker in self._wakers:
            waker.set()

    def _is_forked_by(self, published: Published) -> bool:
        """Whether the database has lost events: a frame is another one, or the end comes earlier."""
        if self.next_seq is None or (overlap := self.next_seq - published.first) <= 0 or published.gone:
            return False
        if published.final is not None and len(published.frames) < overlap:
            return True
        # From the end, both without what the tail has no more.
        ours = islice(reversed(self._frames), overlap)
        theirs = reversed((*published.frames[:overlap], *[None] * (overlap - len(published.frames))))
        pairs = zip(ours, theirs, strict=False)
        return any(new is not None and not same_event(old, new) for old, new in pairs)


class Hub:
    """The channels of this process; those from `watch` live as long as who has them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tail_frames: int = TAIL_FRAMES) -> None:
        self.on_new_reader: Callable[[], None] = lambda: None
        """Called on the loop when a watched response gets a reader; must not wait."""
        self._loop = loop
        self._tail_frames = tail_frames
        self._lock = threading.Lock()
        self._channels: WeakValueDictionary[UUID, Channel] = WeakValueDictionary()
        self._opened: dict[UUID, Channel] = {}
        self._watched: WeakValueDictionary[SubscriptionKey, Channel] = WeakValueDictionary()

    def open(
        self,
        response_id: UUID,
        *,
        stored: bool,
        grace: float,
        on_abandoned: Callable[[], None],
        first_frames: Sequence[bytes] = (),
    ) -> Channel:
        """The channel of a foreground response about to run, cancelled without readers. Any thread."""
        with self._lock:
            channel = self._channels.get(response_id)
            if channel is None:
                channel = Channel(stored=stored, start=0, tail_frames=self._tail_frames)
            self._channels[response_id] = self._opened[response_id] = channel
        channel.end_without_readers(on_abandoned, grace)
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(channel.await_first_reader)
        if first_frames:
            self.publish([Published(response_id, 0, tuple(first_frames), None)])
        return channel

    def prepare(self, response_id: UUID) -> None:
        """Makes an unstored response's channel, which `open` or `discard` follows. Any thread."""
        with self._lock:
            self._channels[response_id] = self._opened[response_id] = Channel(stored=False, start=0)

    def discard(self, response_id: UUID) -> None:
        """The response does not run here; those who read its prepared channel are told. Any thread."""
        if response_id in self._opened:
            self.publish([Published(response_id, 0, (), None, gone=True)])

    def watch(self, tenant: str, response_id: UUID, *, ends_unread: bool = False) -> Channel:
        """The channel of a stored response of this tenant, wherever it runs; if `ends_unread`, it is
        cancelled without readers. Readers read from the store until `begin_at` or the first `publish`. Watch
        a new response before others can claim it: frames published earlier reach no reader here. Any thread.
        """
        with self._lock:
            channel = self._channels.get(response_id)
            if channel is None:
                key = (tenant, response_id)
                channel = Channel(stored=True, on_join=self.on_new_reader, tail_frames=self._tail_frames)
                self._channels[response_id] = self._watched[key] = channel
            channel.ends_unread |= ends_unread
            return channel

    def begin_at(self, channel: Channel, position: int) -> None:
        """Declares that the readers of a watched channel have all frames before `position`. Any thread.

        `position` must come from a read of the store after `watch`: frames committed between a read and a
        later `watch` would be in neither.
        """
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(channel.begin_at, position)

    def release(self, tenant: str, response_id: UUID) -> None:
        """Turns the channel of a run that leaves this replica into a watched one. Any thread."""
        with self._lock:
            channel = self._opened.pop(response_id, None)
            if channel is None or channel.ended:
                return
            self._watched[tenant, response_id] = channel
        self.on_new_reader()

    def subscriptions(self) -> list[Subscription]:
        """The watched responses with readers. Any thread."""
        return [Subscription(*key, channel.next_seq) for key, channel in self._read_channels()]

    def read_here(self) -> list[UUID]:
        """Watched foreground responses with readers here, wherever they run. Any thread."""
        return [response for (_, response), channel in self._read_channels() if channel.ends_unread]

    def _read_channels(self) -> list[tuple[SubscriptionKey, Channel]]:
        with self._lock:
            channels = list(self._watched.items())
        return [(key, channel) for key, channel in channels if channel.readers and not channel.ended]

    def count_readers(self) -> int:
        """The readers of all channels. Any thread."""
        with self._lock:
            channels = list(self._channels.values())
        return sum(channel.readers for channel in channels)

    def is_unread(self, response_id: UUID) -> bool:
        """Whether it runs here in the foreground without readers. Any thread."""
        channel = self._opened.get(response_id)
        return channel is not None and not channel.readers and not channel.ended

    def running(self, response_id: UUID) -> Channel | None:
        """The channel opened for a run here, until its response ends. Any thread."""
        return self._opened.get(response_id)

    def has_channel(self, response_id: UUID) -> bool:
        """Whether this response has a channel, so that its frames are needed. Any thread."""
        return response_id in self._opened or response_id in self._channels

    def publish(self, batch: Iterable[Published]) -> None:
        """Delivers committed frames to the readers. Any thread."""
        published = list(batch)
        if published and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._deliver, published)

    def _deliver(self, batch: list[Published]) -> None:
        for published in batch:
            response_id = published.response_id
            channel = self._opened.get(response_id) or self._channels.get(response_id)
            if channel is None:
                continue
            channel.add(published)
            if channel.ended:
                with self._lock:
                    self._channels.pop(response_id, None)
                    self._opened.pop(response_id, None)


class Abandonment:
    """Responses that run here and have lost their last reader here."""

    def __init__(
        self,
        *,
        is_unread: Callable[[UUID], bool],
        cancel: Callable[[UUID], None],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`is_unread` returns whether a response runs here without a reader here; `cancel` ends one."""
        self._clock = clock
        self._is_unread = is_unread
        self._cancel = cancel
        self._lock = threading.Lock()
        self._cancel_at: dict[UUID, float] = {}

    def add(self, response: UUID) -> None:
        """The response has had no reader here for its grace period. Any thread; never waits."""
        with self._lock:
            self._cancel_at.setdefault(response, self._clock() + GRACE_SECONDS)

    def pending(self) -> list[UUID]:
        """The responses whose readers on other replicas have to be looked up."""
        with self._lock:
            return list(self._cancel_at)

    def settle(self, read_elsewhere: Collection[UUID], *, alone: bool = False) -> None:
        """Cancels what is due and not read elsewhere; everything at once if this is the only replica."""
        now = self._clock()
        with self._lock:
            for response in read_elsewhere:
                self._cancel_at[response] = now + GRACE_SECONDS
            self._cancel_at = {id_: at for id_, at in self._cancel_at.items() if self._is_unread(id_)}
            due = [response for response, at in self._cancel_at.items() if at <= now or alone]
            for response in due:
                del self._cancel_at[response]
        for response in due:
            self._cancel(response)
