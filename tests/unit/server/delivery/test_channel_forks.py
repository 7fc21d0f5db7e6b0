import pytest

from server.delivery.hub import Channel, Published
from tests.support.builders import RESPONSE


def ids(*marked: str) -> tuple[bytes, ...]:
    return tuple(b"id: %b\nevent: e\ndata: {}\n\n" % one.encode() for one in marked)


OLD = ids("0-1.00000000", "1-1.00000000", "2-1.00000000")
NEW = ids("1-2.00000000", "2-2.00000000", "3-2.00000000")


@pytest.mark.parametrize(
    ("published", "forks", "tail"),
    [
        (Published(RESPONSE, 1, NEW[:1], None), 1, NEW[:1]),
        (Published(RESPONSE, 2, NEW[1:], None), 1, NEW[1:]),
        (Published(RESPONSE, 1, NEW, b"{}"), 1, NEW),
        (Published(RESPONSE, 1, OLD[1:2], b"{}"), 1, OLD[1:2]),
        (Published(RESPONSE, 0, (), b"{}"), 1, ()),
        (Published(RESPONSE, 0, (*OLD, NEW[2]), None), 0, (*OLD, NEW[2])),
        (Published(RESPONSE, 1, OLD[1:2], None), 0, OLD),
        (Published(RESPONSE, 2, OLD[2:], b"{}"), 0, OLD),
        (Published(RESPONSE, 3, NEW[2:], None), 0, (*OLD, NEW[2])),
        (Published(RESPONSE, 1, (), None, gone=True), 0, OLD),
    ],
)
def test_channel_counts_a_fork_where_numbers_come_again_with_others(
    published: Published, forks: int, tail: tuple[bytes, ...]
) -> None:
    channel = Channel(stored=True, start=0)
    channel.add(Published(RESPONSE, 0, OLD, None))
    channel.add(published)
    assert channel.forks == forks
    assert channel.next_seq is not None
    assert channel.after(channel.next_seq - len(tail)) == list(tail)
