"""Places that few may have at a time: who gets a free one, and what is left behind."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from engine.fair_limit import FairLimit
from tests.support.eventually import eventually


def test_a_key_has_no_more_places_than_it_may_and_others_get_theirs() -> None:
    limit = FairLimit(total=2)
    limit.acquire("a", 1)
    with pytest.raises(TimeoutError):
        limit.acquire("a", 0)
    limit.acquire("b", 1)
    with pytest.raises(TimeoutError):
        limit.acquire("c", 0)
    assert [limit.holding(key) for key in "abc"] == [1, 1, 0]


def test_a_free_place_goes_to_the_key_that_had_one_longest_ago() -> None:
    limit = FairLimit(total=1)
    order: list[str] = []

    def work(key: str) -> None:
        with limit.hold(key, 60):
            order.append(key)

    with ThreadPoolExecutor(8) as callers:
        limit.acquire("greedy", 1)
        for count, key in enumerate(["greedy", "greedy", "greedy", "modest", "late"]):
            callers.submit(work, key)
            eventually(lambda: sum(map(limit.waiting, ("greedy", "modest", "late"))) == count + 1)  # noqa: B023
        limit.release("greedy")
    assert order[:2] == ["modest", "late"]
    assert order[2:] == ["greedy"] * 3


def test_nothing_is_known_of_keys_that_are_gone() -> None:
    limit = FairLimit(total=1)
    for number in range(100):
        with limit.hold(str(number), 1), pytest.raises(TimeoutError), limit.hold("late", 0):
            pass
    assert limit._granted == {}
    assert not limit._holding
    assert limit._waiting == []


def test_a_place_is_given_back_when_the_work_fails() -> None:
    limit = FairLimit(total=1)
    with pytest.raises(ZeroDivisionError), limit.hold("a", 1):
        raise ZeroDivisionError
    with limit.hold("b", 0):
        assert threading.active_count() >= 1
