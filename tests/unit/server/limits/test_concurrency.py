"""A shared limit counts exactly and refuses a greedy tenant before a full server."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from server.errors import Overloaded, TooManyRequests
from server.limits.concurrency import SharedLimit


def test_a_tenant_at_its_bound_gets_429_while_others_are_served() -> None:
    limit = SharedLimit("open streams", total=3, per_tenant=2)
    limit.acquire("a", 2)
    with pytest.raises(TooManyRequests, match="may have 2 open streams at a time"):
        limit.acquire("a")
    limit.acquire("b")
    assert (limit.used(), limit.used("a"), limit.used("b")) == (3, 2, 1)


def test_a_full_server_answers_503_to_a_tenant_below_its_bound() -> None:
    limit = SharedLimit("open streams", total=3, per_tenant=2)
    limit.acquire("a", 2)
    limit.acquire("b")
    with pytest.raises(Overloaded, match="3 open streams, its limit"):
        limit.acquire("c")
    limit.release("b")
    limit.acquire("c")


def test_what_was_refused_takes_nothing() -> None:
    limit = SharedLimit("bytes", total=10, per_tenant=10)
    limit.acquire("a", 4)
    with pytest.raises(Overloaded):
        limit.acquire("b", 7)
    limit.acquire("b", 6)


def test_a_block_that_raises_gives_its_units_back() -> None:
    limit = SharedLimit("bytes", total=10, per_tenant=10)
    with pytest.raises(ValueError, match="inside"), limit.hold("a", 10):
        raise ValueError("inside")
    assert limit.used() == 0


def test_tenants_with_nothing_in_use_are_forgotten() -> None:
    limit = SharedLimit("bytes", total=1, per_tenant=1)
    for number in range(1000):
        with limit.hold(f"tenant-{number}"), pytest.raises(Overloaded):
            limit.acquire("another")
    assert not limit._by_tenant


def test_threads_never_take_more_than_there_is() -> None:
    limit = SharedLimit("bytes", total=8, per_tenant=8)
    seen: list[int] = []

    def work(_: int) -> None:
        for _turn in range(200):
            try:
                with limit.hold("a"):
                    seen.append(limit.used())
            except TooManyRequests:
                continue

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(16)))
    assert max(seen) <= 8
    assert limit.used() == 0
