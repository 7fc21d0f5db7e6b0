"""The position of one reader in one response's events: the next ones come from a channel or from the store.

A database that loses commits has numbers used again for other events, and a stream would be spliced of two.
So a page of the store is read with the client's last frame, which must be stored before it. A channel's
frames go on from that one, unless the channel has forked, or was behind the store when the client read that.
"""

from collections.abc import Callable, Sequence

from server.delivery.frames import FramePage
from server.delivery.hub import Channel
from server.errors import Overloaded, StreamForked, TooManyRequests
from server.http.asgi.thread_pools import RunInThread
from server.protocol.responses.events import error_frame
from server.store.database_errors import DatabaseError


class StreamPosition:
    """The position of one reader in one response's events."""

    def __init__(
        self,
        channel: Channel | None,
        read: Callable[[int, bytes | None], FramePage],
        position: int = 0,
        first_page: FramePage | None = None,
    ) -> None:
        """`channel` is None if the response has ended. `read` gives the stored frames from a sequence number
        on, after the client's last frame, and is called in a thread; it raises StreamForked. `first_page` are
        frames that were read from `position` on already.
        """
        self.ended = False
        self.channel = channel
        self._read = read
        self._position = position
        self._first_page = first_page
        self._last = None if first_page is None else first_page.before
        """The client's last frame."""
        self._forks = 0
        """The channel's forks after which it is certain to go on from what the client has; -1 if only the
        store can tell."""

    @property
    def is_behind(self) -> bool:
        """Whether the next events are in the store only, not in the channel."""
        return not self.ended and self._from_channel() is None

    async def next_frames(self, run: RunInThread) -> Sequence[bytes]:
        """The frames since the last call; sets `ended` with the last ones. `run` runs reads of the store."""
        page, self._first_page = self._first_page, None
        if page is None and (frames := self._from_channel()) is not None:
            self.advance(frames)
            self.ended = self.channel is not None and self.channel.ended
            return frames
        forks = 0 if self.channel is None else self.channel.forks
        page = page or await self._read_page(run)
        self._position += page.length
        self._last = page.frames[-1] if page.frames else self._last
        self.ended = page.ended
        self._forks = -1 if self._is_ahead() else forks
        return page.frames

    def new_frames(self) -> Sequence[bytes] | None:
        """The channel's frames since the last call of `next_frames`.

        None if that has to be called: the store has to be read, or the response has ended.
        """
        if self.ended:
            return ()
        return None if self.channel is None or self.channel.ended else self._from_channel()

    def advance(self, frames: Sequence[bytes]) -> None:
        """These frames have been sent."""
        if frames:
            self._position += len(frames)
            self._last = frames[-1]

    def _from_channel(self) -> Sequence[bytes] | None:
        """The channel's frames from the position on; None if the store has to be read."""
        if self.channel is None or self.channel.forks != self._forks:
            return None
        return self.channel.after(self._position)

    def _is_ahead(self) -> bool:
        """Whether the client has events from the store that the channel has not had. Should the database lose
        them, the channel has others, and does not know of a fork.
        """
        if self.channel is None or self._last is None:
            return False
        return self.channel.next_seq is None or self.channel.next_seq < self._position

    async def _read_page(self, run: RunInThread) -> FramePage:
        try:
            return await run(self._read, self._position, self._last)
        except StreamForked as fork:
            return FramePage([error_frame(self._position, str(fork.code), str(fork))], ended=True)
        except (DatabaseError, Overloaded, TooManyRequests):
            return FramePage([], False)  # the stream polls again
