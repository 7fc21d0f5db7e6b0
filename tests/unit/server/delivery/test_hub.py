import asyncio
from uuid import UUID, uuid4

import pytest

from server.delivery.hub import (
    FIRST_READER_SECONDS,
    GRACE_SECONDS,
    TAIL_FRAMES,
    Abandonment,
    Channel,
    Hub,
    Published,
)
from server.store.log_read import Subscription
from tests.unit.server.http.asgi.asgi_messages import now, run

GRACE = 15.0


def make_channel(gone: list[float], *, stored: bool = True, tail_frames: int = TAIL_FRAMES) -> Channel:
    channel = Channel(stored=stored, start=0, tail_frames=tail_frames)
    channel.end_without_readers(lambda: gone.append(now()), GRACE)
    return channel


def add(channel: Channel, *frames: bytes, final: bytes | None = None) -> None:
    channel.add(Published(uuid4(), channel.next_seq or 0, frames, final))


def test_a_channel_gives_the_frames_from_a_position_on() -> None:
    channel = make_channel([])
    add(channel, b"0", b"1")
    add(channel, b"2")
    assert [channel.after(n) for n in range(5)] == [[b"0", b"1", b"2"], [b"1", b"2"], [b"2"], [], []]


def test_a_stored_channel_keeps_its_tail_and_sends_others_to_the_store() -> None:
    channel = make_channel([], tail_frames=2)
    add(channel, b"0", b"1", b"2", b"3")
    assert [channel.after(n) for n in range(5)] == [None, None, [b"2", b"3"], [b"3"], []]


def test_a_channel_that_is_not_stored_keeps_everything() -> None:
    channel = make_channel([], stored=False, tail_frames=2)
    add(channel, b"0", b"1", b"2", b"3")
    assert channel.after(0) == [b"0", b"1", b"2", b"3"]


def test_every_reader_is_woken() -> None:
    async def main() -> None:
        channel = make_channel([])
        wakers = [channel.join(), channel.join()]
        add(channel, b"0")
        assert all(waker.is_set() for waker in wakers)

    run(main)


@pytest.mark.parametrize(("stored", "expected"), [(True, [GRACE]), (False, [0.0])])
def test_an_abandoned_run_is_told_of_after_the_grace_and_once(stored: bool, expected: list[float]) -> None:
    async def main() -> list[float]:
        gone: list[float] = []
        channel = make_channel(gone, stored=stored)
        channel.leave(channel.join())
        await asyncio.sleep(10 * GRACE)
        return gone

    assert run(main) == expected


def test_a_run_with_another_reader_is_not_abandoned() -> None:
    async def main() -> list[float]:
        gone: list[float] = []
        channel = make_channel(gone)
        channel.join()
        channel.leave(channel.join())
        await asyncio.sleep(10 * GRACE)
        return gone

    assert run(main) == []


def test_a_reader_that_comes_back_within_the_grace_keeps_the_run() -> None:
    async def main() -> list[float]:
        gone: list[float] = []
        channel = make_channel(gone)
        channel.leave(channel.join())
        await asyncio.sleep(GRACE - 1)
        channel.join()
        await asyncio.sleep(10 * GRACE)
        return gone

    assert run(main) == []


def test_the_grace_begins_anew_with_every_reader_that_leaves() -> None:
    async def main() -> list[float]:
        gone: list[float] = []
        channel = make_channel(gone)
        channel.leave(channel.join())
        await asyncio.sleep(GRACE - 2)
        waker = channel.join()
        await asyncio.sleep(1)
        channel.leave(waker)
        await asyncio.sleep(10 * GRACE)
        return gone

    assert run(main) == [2 * GRACE - 1]


def test_an_ended_run_is_not_abandoned() -> None:
    async def main() -> list[float]:
        gone: list[float] = []
        late, early = make_channel(gone), make_channel(gone)
        late.leave(late.join())
        add(late, final=b"{}")
        waker = early.join()
        add(early, final=b"{}")
        early.leave(waker)
        await asyncio.sleep(10 * GRACE)
        return gone

    assert run(main) == []


def test_who_finds_a_response_before_its_run_begins_is_told_of_it_all_the_same() -> None:
    async def main() -> list[bytes] | None:
        hub = Hub(asyncio.get_running_loop())
        response = uuid4()
        early = hub.watch("acme", response)
        assert hub.open(response, stored=True, grace=1, on_abandoned=lambda: None) is early
        hub.publish([Published(response, 0, (b"0",), b"{}")])
        await asyncio.sleep(0)
        assert early.final == b"{}"
        return early.after(0)

    assert run(main) == [b"0"]


def test_the_hub_delivers_to_the_channel_and_forgets_it_at_the_end() -> None:
    async def main() -> None:
        hub = Hub(asyncio.get_running_loop())
        response = uuid4()
        assert not hub.has_channel(response)
        channel = hub.open(response, stored=True, grace=1, on_abandoned=lambda: None)
        assert hub.watch("acme", response) is channel
        assert hub.has_channel(response)
        hub.publish([Published(response, 0, (b"0",), None), Published(uuid4(), 0, (b"x",), None)])
        hub.publish([Published(response, 1, (b"1",), b"{}")])
        assert channel.after(0) == []
        await asyncio.sleep(0)
        assert channel.after(0) == [b"0", b"1"]
        assert channel.final == b"{}"
        assert not hub.has_channel(response)
        hub.publish([Published(response, 2, (b"2",), None)])
        await asyncio.sleep(0)
        assert channel.after(0) == [b"0", b"1"]

    run(main)


def test_a_hub_whose_loop_is_closed_takes_what_it_is_told() -> None:
    loop = asyncio.new_event_loop()
    hub = Hub(loop)
    response = uuid4()
    hub.open(response, stored=True, grace=1, on_abandoned=lambda: None)
    loop.close()
    hub.publish([Published(response, 0, (b"0",), None)])


def test_a_run_whose_reader_never_comes_is_given_up_after_the_grace() -> None:
    async def main() -> list[float]:
        gone: list[float] = []
        hub = Hub(asyncio.get_running_loop())
        hub.open(uuid4(), stored=True, grace=GRACE, on_abandoned=lambda: gone.append(now()))
        hub.open(uuid4(), stored=False, grace=0, on_abandoned=lambda: gone.append(now()))
        await asyncio.sleep(10 * GRACE)
        return gone

    assert run(main) == [FIRST_READER_SECONDS, GRACE]


def test_a_run_whose_reader_comes_at_last_is_not_given_up() -> None:
    async def main() -> list[float]:
        gone: list[float] = []
        hub = Hub(asyncio.get_running_loop())
        channel = hub.open(uuid4(), stored=False, grace=0, on_abandoned=lambda: gone.append(now()))
        await asyncio.sleep(FIRST_READER_SECONDS - 1)
        channel.join()
        await asyncio.sleep(10 * GRACE)
        return gone

    assert run(main) == []


def test_a_watched_response_is_never_given_up() -> None:
    async def main() -> None:
        hub = Hub(asyncio.get_running_loop())
        channel = hub.watch("acme", uuid4())
        channel.leave(channel.join())
        await asyncio.sleep(10 * GRACE)
        assert not channel.ended

    run(main)


def test_a_channel_knows_where_it_begins_from_what_it_is_told_first() -> None:
    channel = Channel(stored=True)
    assert (channel.next_seq, channel.after(0)) == (None, None)
    channel.add(Published(uuid4(), 7, (), None))
    assert [channel.after(n) for n in (0, 6, 7, 8)] == [None, None, [], []]
    channel.add(Published(uuid4(), 7, (b"7", b"8"), None))
    assert [channel.after(n) for n in (6, 7, 8, 9)] == [None, [b"7", b"8"], [b"8"], []]


def test_frames_that_are_told_twice_are_kept_once() -> None:
    channel = Channel(stored=True, start=0)
    channel.add(Published(uuid4(), 0, (b"0", b"1", b"2"), None))
    channel.add(Published(uuid4(), 1, (b"1", b"2", b"3"), None))
    channel.add(Published(uuid4(), 0, (b"0",), None))
    assert channel.after(0) == [b"0", b"1", b"2", b"3"]


def test_after_a_gap_the_tail_begins_anew_and_the_store_has_the_rest() -> None:
    channel = Channel(stored=True, start=0)
    channel.add(Published(uuid4(), 0, (b"0", b"1"), None))
    channel.add(Published(uuid4(), 4, (b"4", b"5"), None))
    assert [channel.after(n) for n in range(7)] == [None, None, None, None, [b"4", b"5"], [b"5"], []]


def test_what_comes_after_the_end_changes_nothing() -> None:
    channel = Channel(stored=True, start=0)
    channel.add(Published(uuid4(), 0, (b"0",), b"{}"))
    channel.add(Published(uuid4(), 0, (b"0", b"1"), None, gone=True))
    assert (channel.after(0), channel.final, channel.gone) == ([b"0"], b"{}", False)


def test_a_watched_response_has_one_channel_until_nobody_has_it() -> None:
    async def main() -> None:
        hub = Hub(asyncio.get_running_loop())
        response = uuid4()
        told: list[float] = []
        hub.on_new_reader = lambda: told.append(now())
        channel = hub.watch("acme", response)
        assert hub.watch("acme", response) is channel
        assert hub.has_channel(response)
        assert (hub.subscriptions(), told) == ([], [])
        waker = channel.join()
        assert (hub.subscriptions(), told) == ([Subscription("acme", response, None)], [0.0])
        hub.publish([Published(response, 3, (b"3",), None)])
        await asyncio.sleep(0)
        assert hub.subscriptions() == [Subscription("acme", response, 4)]
        channel.leave(waker)
        assert hub.subscriptions() == []
        del channel
        assert not hub.has_channel(response)

    run(main)


def test_a_reader_that_joins_when_the_last_one_has_left_is_not_forgotten() -> None:
    async def main() -> None:
        hub = Hub(asyncio.get_running_loop())
        response = uuid4()
        first = hub.watch("acme", response)
        waker = first.join()
        late = hub.watch("acme", response)  # a handler has it, and its reader is not on the loop yet
        first.leave(waker)
        del first
        third = hub.watch("acme", response)
        third.leave(third.join())
        del third
        woken = late.join()
        hub.publish([Published(response, 0, (b"0",), None)])
        await asyncio.sleep(0)
        assert woken.is_set()
        assert late.after(0) == [b"0"]

    run(main)


def test_a_response_that_ended_is_not_looked_after_and_its_next_reader_begins_anew() -> None:
    async def main() -> None:
        hub = Hub(asyncio.get_running_loop())
        response = uuid4()
        channel = hub.watch("acme", response)
        channel.join()
        hub.publish([Published(response, 0, (b"0",), b"{}")])
        await asyncio.sleep(0)
        assert hub.subscriptions() == []
        other = hub.watch("acme", response)
        other.join()
        assert other is not channel
        assert hub.subscriptions() == [Subscription("acme", response, None)]

    run(main)


LEFT, READ, BACK = uuid4(), uuid4(), uuid4()


class Replica:
    """What `Abandonment` asks and tells: the time, who reads, what is cancelled."""

    def __init__(self) -> None:
        self.now = 100.0
        self.read_here: set[UUID] = set()
        self.cancelled: list[UUID] = []
        self.unread = Abandonment(
            is_unread=lambda one: one not in self.read_here,
            cancel=self.cancelled.append,
            clock=lambda: self.now,
        )


@pytest.fixture
def replica() -> Replica:
    return Replica()


def test_what_nobody_reads_ends_once_others_have_had_time_to_tell_of_readers(replica: Replica) -> None:
    replica.unread.add(LEFT)
    replica.unread.settle([])
    assert (replica.cancelled, replica.unread.pending()) == ([], [LEFT])
    replica.now += GRACE_SECONDS
    replica.unread.settle([])
    replica.unread.settle([])
    assert (replica.cancelled, replica.unread.pending()) == ([LEFT], [])


def test_what_is_read_elsewhere_goes_on_for_as_long_as_it_is(replica: Replica) -> None:
    for one in (LEFT, READ):
        replica.unread.add(one)
    for _ in range(20):
        replica.now += GRACE_SECONDS
        replica.unread.settle([READ])
    assert replica.cancelled == [LEFT]
    replica.now += GRACE_SECONDS
    replica.unread.settle([])
    assert replica.cancelled == [LEFT, READ]


def test_what_is_read_here_again_goes_on_until_it_is_left_again(replica: Replica) -> None:
    replica.unread.add(BACK)
    replica.read_here.add(BACK)
    replica.now += GRACE_SECONDS
    replica.unread.settle([])
    assert (replica.cancelled, replica.unread.pending()) == ([], [])
    replica.read_here.clear()
    replica.unread.add(BACK)
    replica.unread.settle([])
    assert replica.cancelled == []


def test_a_replica_that_is_alone_waits_for_nobody(replica: Replica) -> None:
    replica.unread.add(LEFT)
    replica.unread.settle([], alone=True)
    assert replica.cancelled == [LEFT]
