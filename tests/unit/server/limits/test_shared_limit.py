"""A shared limit and the count of responses are exact, and refuse a greedy tenant before a full server."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import pytest

from server.caller import Caller
from server.errors import InvalidRequest, Overloaded, TooManyRequests
from server.limits.shared_limit import SharedLimit
from server.limits.tenant_limits import MAX_INPUT_BYTES, MAX_PROMPT_IMAGE_BYTES, UnfinishedResponses
from server.protocol.ids import new_uuid
from tests.support.contents import entries


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
    before = entries(limit)
    for number in range(1000):
        with limit.hold(f"tenant-{number}"), pytest.raises(Overloaded):
            limit.acquire("another")
    assert entries(limit) == before


def test_pictures_of_unfinished_responses_are_counted_until_they_end() -> None:
    counted = UnfinishedResponses(total=10)
    first, second, third = new_uuid(), new_uuid(), new_uuid()
    counted.reserve(Caller("a", "key"), [first, second], MAX_PROMPT_IMAGE_BYTES // 2)
    with pytest.raises(TooManyRequests, match="bytes of pictures"):
        counted.reserve(Caller("a", "key"), [third], 1)
    assert third not in counted
    counted.reserve(Caller("b", "key"), [third], MAX_PROMPT_IMAGE_BYTES // 2)
    with pytest.raises(Overloaded, match="bytes of pictures"):
        counted.reserve(Caller("c", "key"), [new_uuid()], 1)
    counted.discard(second)
    with pytest.raises(TooManyRequests):
        counted.reserve(Caller("a", "key"), [new_uuid()], 1)
    counted.discard(first)
    counted.reserve(Caller("a", "key"), [new_uuid()], MAX_PROMPT_IMAGE_BYTES // 2)


def test_pictures_that_responses_share_are_counted_until_the_last_of_them_ends() -> None:
    for order in (0, 1), (1, 0):
        counted, shared = UnfinishedResponses(total=10), ids(2)
        counted.reserve(Caller("a", "key"), shared, MAX_PROMPT_IMAGE_BYTES // 2)
        counted.discard(shared[order[0]])
        counted.discard(shared[order[0]])
        with pytest.raises(TooManyRequests, match="bytes of pictures"):
            counted.reserve(Caller("a", "key"), ids(1), 1)
        counted.discard(shared[order[1]])
        counted.reserve(Caller("a", "key"), ids(1), MAX_PROMPT_IMAGE_BYTES // 2)


def test_input_that_is_kept_for_further_turns_is_counted_until_the_last_response_that_shares_it_ends() -> (
    None
):
    counted, (first, second), others = UnfinishedResponses(total=20), ids(2), ids(2)
    counted.reserve(Caller("a", "key"), [first, second], input_bytes=MAX_INPUT_BYTES // 2)
    with pytest.raises(TooManyRequests, match="bytes of input"):
        counted.reserve(Caller("a", "key"), ids(1), input_bytes=1)
    counted.reserve(Caller("b", "key"), others, input_bytes=MAX_INPUT_BYTES // 2)
    with pytest.raises(Overloaded, match="bytes of input"):
        counted.reserve(Caller("c", "key"), ids(1), input_bytes=1)
    counted.reserve(Caller("a", "key"), ids(1))
    counted.discard(first)
    with pytest.raises(TooManyRequests):
        counted.reserve(Caller("a", "key"), ids(1), input_bytes=1)
    counted.discard(second)
    counted.reserve(Caller("a", "key"), ids(1), input_bytes=MAX_INPUT_BYTES // 2)


def test_a_request_without_room_for_its_input_leaves_no_bytes_of_its_pictures_counted() -> None:
    counted = UnfinishedResponses(total=10)
    refused = ids(2)
    with pytest.raises(TooManyRequests, match="bytes of input"):
        counted.reserve(Caller("a", "key"), refused, MAX_PROMPT_IMAGE_BYTES // 2, MAX_INPUT_BYTES)
    assert len(counted) == 0
    counted.reserve(Caller("a", "key"), refused, MAX_PROMPT_IMAGE_BYTES // 2)


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


def ids(count: int) -> Sequence[UUID]:
    return [new_uuid() for _ in range(count)]


def test_a_tenant_with_a_key_has_half_and_the_others_the_rest() -> None:
    capacity = UnfinishedResponses(total=4)
    capacity.reserve(Caller("a", "key"), ids(2))
    with pytest.raises(TooManyRequests):
        capacity.reserve(Caller("a", "key"), ids(1))
    capacity.reserve(Caller("b", "key"), ids(2))
    with pytest.raises(Overloaded):
        capacity.check(Caller("c", "key"), 1)
    assert len(capacity) == 4


def test_without_a_key_the_one_tenant_has_all() -> None:
    capacity = UnfinishedResponses(total=3)
    capacity.reserve(Caller("default", None), ids(3))
    with pytest.raises(Overloaded):
        capacity.reserve(Caller("default", None), ids(1))


def test_the_setting_bounds_a_tenant_with_and_without_a_key() -> None:
    capacity = UnfinishedResponses(total=8, per_tenant=1)
    for key in (None, "key"):
        (one,) = ids(1)
        capacity.reserve(Caller("a", key), [one])
        with pytest.raises(TooManyRequests):
            capacity.reserve(Caller("a", key), ids(1))
        assert capacity.full_tenants() == {"a"}
        capacity.discard(one)
        assert capacity.full_tenants() == set()


def test_of_several_responses_all_are_counted_or_none_is() -> None:
    capacity = UnfinishedResponses(total=4)
    capacity.reserve(Caller("a", None), ids(2))
    with pytest.raises(Overloaded):
        capacity.reserve(Caller("a", None), ids(3))
    assert len(capacity) == 2
    with pytest.raises(InvalidRequest):
        capacity.reserve(Caller("a", None), ids(5))


def test_a_response_is_counted_once_and_let_go_once() -> None:
    capacity = UnfinishedResponses(total=2)
    (one,) = ids(1)
    capacity.reserve(Caller("a", None), [one])
    capacity.add(one, "a")
    assert one in capacity
    capacity.discard(one)
    capacity.discard(one)
    assert one not in capacity
    capacity.reserve(Caller("a", None), ids(2))
