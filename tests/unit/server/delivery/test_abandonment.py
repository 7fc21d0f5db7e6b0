from uuid import UUID, uuid4

import pytest

from server.delivery import abandonment
from server.delivery.abandonment import GRACE_SECONDS, Abandonment

LEFT, READ, BACK = uuid4(), uuid4(), uuid4()


class Replica:
    """What `Abandonment` asks and tells: the time, who reads, what is cancelled."""

    def __init__(self) -> None:
        self.now = 100.0
        self.read_here: set[UUID] = set()
        self.cancelled: list[UUID] = []
        self.unread = Abandonment(
            is_unread=lambda one: one not in self.read_here, cancel=self.cancelled.append
        )


@pytest.fixture
def replica(monkeypatch: pytest.MonkeyPatch) -> Replica:
    made = Replica()
    monkeypatch.setattr(abandonment, "monotonic", lambda: made.now)
    return made


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
