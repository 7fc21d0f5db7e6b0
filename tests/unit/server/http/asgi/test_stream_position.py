"""Readers of a stream whose numbers are used again after a loss of commits, or have a gap."""

from uuid import uuid4

from server.delivery.frames import FramePage
from server.delivery.hub import Published
from server.errors import StreamForked
from server.http.asgi.answers import DONE, EventStream, StreamPosition
from tests.unit.server.http.asgi.asgi_messages import Client, run
from tests.unit.server.http.asgi.test_answers import FRAMES, KEEP_ALIVE_S, Stream, follow


def marked(number: int, attempt: int) -> bytes:
    return b"id: %d-%d.00000000\nevent: e\ndata: {}\n\n" % (number, attempt)


def test_a_reader_is_ended_by_an_error_when_its_channel_forks() -> None:
    def read(first: int, last: bytes | None) -> FramePage:
        assert (first, last) == (3, marked(2, 1))
        raise StreamForked(2)

    async def main() -> Client:
        stream = Stream()
        client, task = stream.follow(read=read)
        stream.add(*(marked(number, 1) for number in range(3)))
        await client.until(lambda: client.body.count(b"id: ") == 3)
        stream.channel.add(Published(uuid4(), 1, (marked(1, 2), marked(2, 2), marked(3, 2)), None))
        await task
        return client

    rest = run(main).body.partition(b"id: 2-1.00000000\nevent: e\ndata: {}\n\n")[2]
    assert rest.startswith(b'event: error\ndata: {"type":"error","sequence_number":3,"code":"stream_forked",')
    assert rest.endswith(b"}\n\n" + DONE)


def test_a_reader_goes_on_when_its_channel_forks_after_what_it_has() -> None:
    """It was slow, and the store has the events that it had."""

    def read(first: int, last: bytes | None) -> FramePage:
        assert (first, last) == (1, marked(0, 1))
        return FramePage([marked(1, 2), marked(2, 2)], False)

    async def main() -> Client:
        stream = Stream()
        stream.add(*(marked(number, 1) for number in range(3)))
        begun = FramePage([marked(0, 1)], False)
        client = Client()
        stream.channel.add(Published(uuid4(), 1, (marked(1, 2), marked(2, 2)), None))
        task = client.ask(
            EventStream(StreamPosition(stream.channel, read, 0, begun), keep_alive=KEEP_ALIVE_S, headers={})
        )
        await client.until(lambda: client.body.count(b"id: ") == 3)
        stream.add(marked(3, 2), end=True)
        await task
        return client

    assert run(main).body == b"".join([marked(0, 1), *(marked(number, 2) for number in (1, 2, 3))]) + DONE


def test_a_reader_whom_the_store_gave_more_than_the_channel_has_compares_before_it_goes_on() -> None:
    """The channel does not notice a loss of events that it has not had."""
    asked: list[tuple[int, bytes | None]] = []

    def read(first: int, last: bytes | None) -> FramePage:
        asked.append((first, last))
        if last == marked(2, 1):
            raise StreamForked(2)
        return FramePage([], False)

    async def main() -> Client:
        stream = Stream()
        stream.add(marked(0, 1))
        client = Client()
        begun = FramePage([marked(number, 1) for number in range(3)], False)
        task = client.ask(
            EventStream(StreamPosition(stream.channel, read, 0, begun), keep_alive=KEEP_ALIVE_S, headers={})
        )
        await client.until(lambda: client.body.count(b"id: ") == 3)
        stream.add(*(marked(number, 2) for number in range(1, 5)))
        await task
        return client

    assert b"stream_forked" in run(main).body
    assert asked[-1] == (3, marked(2, 1))


def test_a_page_whose_numbers_have_a_gap_takes_the_reader_behind_it() -> None:
    def read(first: int, _last: bytes | None) -> FramePage:
        pages = {0: FramePage(FRAMES[:2], False, missing=3), 5: FramePage(FRAMES[5:], True)}
        return pages[first]

    async def main() -> Client:
        client, task = follow(None, 0, read)
        await task
        return client

    assert run(main).body == b"".join([*FRAMES[:2], *FRAMES[5:]]) + DONE
