"""Commits, tellings of them and readers in any order: each reader gets every frame once, and in order."""

import asyncio
from dataclasses import dataclass, field
from uuid import uuid4

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from server.delivery.hub import Channel, Hub, Published
from tests.support.builders import examples

TENANT = "acme"


@dataclass
class Reader:
    """What `EventStream` does, without HTTP: the tail if it reaches far enough back, else the store."""

    channel: Channel
    position: int
    waker: asyncio.Event | None = None
    read: list[bytes] = field(default_factory=list)

    def take(self, log: list[bytes]) -> None:
        frames = self.channel.after(self.position)
        self.read += log[self.position :] if frames is None else frames
        self.position = self.start + len(self.read)

    def __post_init__(self) -> None:
        self.start = self.position


class Orders(RuleBasedStateMachine):
    """One response, which the recorder and the follower tell of: late, twice, in the wrong order or never."""

    @initialize(tail=st.integers(1, 8))
    def begin(self, tail: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.hub = Hub(self.loop, tail)
        self.response = uuid4()
        self.log: list[bytes] = []
        self.on_the_way: list[Published] = []
        self.expected: list[Reader] = []
        self.readers: list[Reader] = []

    @rule(count=st.integers(1, 5), told=st.booleans())
    def commit(self, count: int, told: bool) -> None:
        first = len(self.log)
        self.log += [b"%d " % number for number in range(first, first + count)]
        if told and self.hub.has_channel(self.response):
            self.on_the_way.append(Published(self.response, first, tuple(self.log[first:]), None))

    @rule()
    def look(self) -> None:
        for watched in self.hub.subscriptions():
            first = len(self.log) if watched.next_seq is None else watched.next_seq
            self.on_the_way.append(Published(self.response, first, tuple(self.log[first:]), None))

    @precondition(lambda self: self.on_the_way)
    @rule(data=st.data())
    def tell(self, data: st.DataObject) -> None:
        self.deliver(self.on_the_way.pop(data.draw(st.integers(0, len(self.on_the_way) - 1))))

    @rule(data=st.data())
    def watch(self, data: st.DataObject) -> None:
        position = data.draw(st.integers(0, len(self.log)))
        self.expected.append(Reader(self.hub.watch(TENANT, self.response), position))

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def join(self, data: st.DataObject) -> None:
        reader = self.expected.pop(data.draw(st.integers(0, len(self.expected) - 1)))
        reader.waker = reader.channel.join()
        self.readers.append(reader)

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        # A strategy that holds readers would keep them, and what they read, until garbage is collected.
        self.readers[data.draw(st.integers(0, len(self.readers) - 1))].take(self.log)

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        reader = self.readers.pop(data.draw(st.integers(0, len(self.readers) - 1)))
        assert reader.waker is not None
        reader.channel.leave(reader.waker)

    @invariant()
    def what_was_read_is_whole_and_in_order(self) -> None:
        for reader in self.readers:
            assert reader.read == self.log[reader.start : reader.start + len(reader.read)]

    def deliver(self, published: Published) -> None:
        self.hub.publish([published])
        self.loop.run_until_complete(asyncio.sleep(0))

    def teardown(self) -> None:
        while self.expected:
            reader = self.expected.pop()
            reader.waker = reader.channel.join()
            self.readers.append(reader)
        for watched in self.hub.subscriptions():
            self.on_the_way.append(
                Published(
                    self.response, watched.next_seq or 0, tuple(self.log[watched.next_seq or 0 :]), b"{}"
                )
            )
        for published in self.on_the_way:
            self.deliver(published)
        for reader in self.readers:
            assert reader.waker is not None
            assert reader.waker.is_set(), "a reader was forgotten"
            assert reader.channel.ended
            for _ in range(2):
                reader.take(self.log)
            assert reader.read == self.log[reader.start :]
        self.loop.close()


Orders.TestCase.settings = examples(120)
TestOrders = Orders.TestCase
