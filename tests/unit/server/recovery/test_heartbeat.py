"""Who counts as silent, by the heartbeats that one replica sees between its own."""

from uuid import UUID

from server.recovery.heartbeat import StoringWatch
from server.store.cluster.leases import HeartbeatWatch

LEASE = 10.0
ONE, OTHER = UUID(int=1), UUID(int=2)


def look_every_second(watch: HeartbeatWatch, start: int, end: int, *, beating: bool = False) -> list[int]:
    """Looks from second to second; at which of them ONE is judged silent."""
    return [
        now for now in range(start, end) if ONE in watch.observe(now, {ONE: str(now) if beating else "0"})
    ]


def test_a_heartbeat_that_does_not_change_for_a_lease_is_silence() -> None:
    watch = HeartbeatWatch(LEASE)
    assert look_every_second(watch, 0, 14) == [10, 11, 12, 13]
    assert watch.observe(14, {ONE: "0", OTHER: "0"}) == {ONE: "0"}


def test_a_replica_that_beats_is_never_silent_whatever_its_clock_says() -> None:
    watch = HeartbeatWatch(LEASE)
    assert look_every_second(watch, 0, 100, beating=True) == []
    assert watch.observe(100, {ONE: "-3600"}) == {}
    assert watch.observe(101, {ONE: "Infinity"}) == {}


def test_nobody_is_judged_before_this_replicas_own_heartbeats_succeeded_for_a_lease() -> None:
    watch = HeartbeatWatch(LEASE)
    look_every_second(watch, 0, 9)
    watch.failed()
    assert look_every_second(watch, 50, 62) == [60, 61]


def test_a_replica_that_was_suspended_for_longer_than_a_lease_begins_to_observe_anew() -> None:
    watch = HeartbeatWatch(LEASE)
    look_every_second(watch, 0, 9)
    assert look_every_second(watch, 39, 51) == [49, 50]


def test_a_gap_shorter_than_a_lease_counts_for_a_part_of_it_only() -> None:
    watch = HeartbeatWatch(LEASE)
    seen = [now for now in (0, 9, 18, 27, 36, 45) if watch.observe(now, {ONE: "0"})]
    assert seen == [36, 45], "four looks after the first, however far apart"


def test_a_replica_that_came_later_is_observed_for_a_whole_lease_too() -> None:
    watch = HeartbeatWatch(LEASE)
    look_every_second(watch, 0, 20)
    found = [now for now in range(20, 40) if OTHER in watch.observe(now, {ONE: "0", OTHER: "5"})]
    assert found[0] in (30, 31)


def test_a_replica_that_stores_nothing_renews_its_lease_three_times_as_long_as_that_is() -> None:
    watch = StoringWatch(LEASE)
    assert [now for now in range(0, 60, 5) if not watch.may_beat(now, stores=now < 10)] == [40, 45, 50, 55]
    assert watch.may_beat(60, stores=True)
    assert watch.may_beat(61, stores=False), "its patience begins anew"
