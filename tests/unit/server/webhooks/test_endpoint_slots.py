from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from server.webhooks.endpoint_slots import FAILURES, MAX_PAUSE_SECONDS, PER_ENDPOINT, EndpointSlots
from tests.support.builders import examples

ENDPOINTS = [UUID(int=number) for number in range(40)]
A, B, *_ = ENDPOINTS


def slots() -> EndpointSlots:
    return EndpointSlots(16, 5.0)


def fail(made: EndpointSlots, endpoint: UUID, now: float = 0.0) -> None:
    made.begin(endpoint)
    made.end(endpoint, now, received=False)


def test_an_endpoint_has_one_attempt_until_the_first_success_and_then_several() -> None:
    made = slots()
    assert made.room([A], 0) == {A: 1}
    made.begin(A)
    assert made.room([A], 0) == {}
    made.end(A, 0, received=True)
    assert made.room([A], 0) == {A: PER_ENDPOINT}
    made.begin(A)
    assert made.room([A], 0) == {A: PER_ENDPOINT - 1}


def test_endpoints_that_are_not_trusted_share_half_of_the_senders() -> None:
    made = slots()
    made.begin(A)
    made.end(A, 0, received=True)
    assert len(made.room(ENDPOINTS[1:], 0)) == 8
    for endpoint in ENDPOINTS[1:9]:
        made.begin(endpoint)
    assert made.room(ENDPOINTS, 1) == {A: PER_ENDPOINT}
    assert made.free() == 8


def test_those_come_first_that_have_failed_least() -> None:
    made = EndpointSlots(2, 5.0)
    fail(made, A, 1)
    assert list(made.room([A, B], 2)) == [B]
    fail(made, B, 2)
    fail(made, B, 3)
    assert list(made.room([B, A], 4)) == [A]


def test_an_endpoint_that_only_fails_is_tried_less_and_less_often() -> None:
    made, now = slots(), 0.0
    for _ in range(FAILURES):
        assert made.room([A], now) == {A: 1}
        fail(made, A, now)
    assert made.room([A], now + 4.9) == {}
    assert made.room([A], now + 5.0) == {A: 1}
    for _ in range(40):
        now += 1000
        fail(made, A, now)
    assert made.room([A], now + MAX_PAUSE_SECONDS - 1) == {}
    assert made.room([A], now + MAX_PAUSE_SECONDS) == {A: 1}


def test_one_success_ends_the_pauses() -> None:
    made = slots()
    for _ in range(FAILURES):
        fail(made, A)
    made.begin(A)
    made.end(A, 10, received=True)
    fail(made, A, 11)
    assert made.room([A], 11) == {A: 1}


def test_a_receiver_that_asks_for_a_pause_gets_it_and_others_go_on() -> None:
    made = slots()
    made.begin(A)
    made.end(A, 0, received=False, throttle_seconds=60)
    assert made.room([A, B], 59) == {B: 1}
    assert made.room([A, B], 60) == {A: 1, B: 1}


@given(st.lists(st.tuples(st.sampled_from(ENDPOINTS), st.booleans(), st.floats(0, 100)), max_size=200))
@examples(100)
def test_no_more_attempts_are_under_way_than_senders_whatever_happens(
    steps: list[tuple[UUID, bool, float]],
) -> None:
    made, now, under_way = slots(), 0.0, list[UUID]()
    for endpoint, received, later in steps:
        now += later
        for key, number in made.room(ENDPOINTS, now).items():
            assert 1 <= number <= PER_ENDPOINT
            for _ in range(min(number, made.free())):
                made.begin(key)
                under_way.append(key)
        assert made.free() == 16 - len(under_way) >= 0
        if endpoint in under_way:
            under_way.remove(endpoint)
            made.end(endpoint, now, received=received)
