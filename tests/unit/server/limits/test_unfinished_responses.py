"""How unfinished responses are counted, and what one answer may tell of log probabilities."""

from collections.abc import Sequence
from uuid import UUID

import pytest

from server.errors import InvalidRequest, Overloaded, TooManyRequests
from server.limits.request_cost import MAX_LOGPROBS, logprobs_limit
from server.limits.unfinished_responses import UnfinishedResponses
from server.protocol.ids import new_uuid


def ids(count: int) -> Sequence[UUID]:
    return [new_uuid() for _ in range(count)]


def test_a_tenant_with_a_key_has_half_and_the_others_the_rest() -> None:
    capacity = UnfinishedResponses(total=4)
    capacity.reserve("a", "key", ids(2))
    with pytest.raises(TooManyRequests):
        capacity.reserve("a", "key", ids(1))
    capacity.reserve("b", "key", ids(2))
    with pytest.raises(Overloaded):
        capacity.check("c", "key", 1)
    assert len(capacity) == 4


def test_without_a_key_the_one_tenant_has_all() -> None:
    capacity = UnfinishedResponses(total=3)
    capacity.reserve("default", None, ids(3))
    with pytest.raises(Overloaded):
        capacity.reserve("default", None, ids(1))


def test_the_setting_bounds_a_tenant_with_and_without_a_key() -> None:
    capacity = UnfinishedResponses(total=8, per_tenant=1)
    for key in (None, "key"):
        (one,) = ids(1)
        capacity.reserve("a", key, [one])
        with pytest.raises(TooManyRequests):
            capacity.reserve("a", key, ids(1))
        assert capacity.full_tenants() == {"a"}
        capacity.discard(one)
        assert capacity.full_tenants() == set()


def test_of_several_responses_all_are_counted_or_none_is() -> None:
    capacity = UnfinishedResponses(total=4)
    capacity.reserve("a", None, ids(2))
    with pytest.raises(Overloaded):
        capacity.reserve("a", None, ids(3))
    assert len(capacity) == 2
    with pytest.raises(InvalidRequest):
        capacity.reserve("a", None, ids(5))


def test_a_response_is_counted_once_and_let_go_once() -> None:
    capacity = UnfinishedResponses(total=2)
    (one,) = ids(1)
    capacity.reserve("a", None, [one])
    capacity.add(one, "a")
    assert one in capacity
    capacity.discard(one)
    capacity.discard(one)
    assert one not in capacity
    capacity.reserve("a", None, ids(2))


def test_more_log_probabilities_of_a_token_leave_fewer_tokens() -> None:
    assert logprobs_limit(0) == logprobs_limit(1) == MAX_LOGPROBS
    assert logprobs_limit(20) == MAX_LOGPROBS // 20
    assert logprobs_limit(None) > MAX_LOGPROBS
