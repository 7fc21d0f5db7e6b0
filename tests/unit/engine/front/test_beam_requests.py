"""Beam searches beside other requests: whose entry an end removes, ids of steps, and the places they take."""

from collections.abc import Sequence

import pytest

from engine.front.beam_search import PREFIX, BeamRequests
from engine.front.request_registry import AcceptedRequest, RequestRegistry
from engine.request import (
    Beams,
    EngineRequest,
    Failed,
    Finished,
    FinishReason,
    Outbound,
    RequestRefused,
    TokenLogprobs,
    Tokens,
    TokenUsage,
)
from tests.support.contents import entries
from tests.support.engines import make_request

WIDTH = 3
TABLE = TokenLogprobs(-1.0, tuple((token, -1.0 - token) for token in range(2 * WIDTH)))


class Steps:
    """An engine whose steps end when the test says so."""

    def __init__(self, capacity: int = 100, capacity_per_key: int | None = None) -> None:
        self.registry = RequestRegistry(capacity, capacity_per_key)
        self.live: list[str] = []
        self.cancelled: list[str] = []
        self.told: list[Outbound] = []
        self.beams = BeamRequests(
            self.registry, self._accept_step, self.cancelled.append, self.told.extend, block_size=16
        )

    def _accept_step(self, request: EngineRequest, digests: list[bytes]) -> None:
        self.registry.accept(AcceptedRequest(request, digests, None, has_place=True))
        self.live.append(request.request_id)

    def accept(self, name: str) -> None:
        self.registry.accept(AcceptedRequest(make_request(name, [1]), [], None))

    def step(self) -> None:
        """All live steps end with a token."""
        messages: list[Outbound] = []
        for step in self.live:
            messages += [
                Tokens(step, (0,), (TABLE,)),
                Finished(step, "length", TokenUsage(prompt=1, output=1)),
            ]
        self._end(messages)

    def end_cancelled(self) -> None:
        """The steps that were cancelled end."""
        ended = [step for step in self.cancelled if step in self.live]
        self._end([Finished(step, "cancelled", TokenUsage(prompt=1)) for step in ended])
        self.cancelled.clear()

    def fail_one(self) -> None:
        self._end([Failed(self.live[0], "engine_error", "It broke.", TokenUsage(prompt=1))])

    def _end(self, messages: Sequence[Outbound]) -> None:
        for message in messages:
            if isinstance(message, Finished | Failed):
                self.registry.remove(message.request_id)
                self.live.remove(message.request_id)
        self.beams.deliver(messages)

    def fill(self) -> int:
        """How many other requests are accepted."""
        for count in range(1000):
            try:
                self.accept(f"other{count}-{len(self.registry)}")
            except RequestRefused:
                return count
        raise AssertionError("there is no bound")

    def reasons(self, name: str) -> list[FinishReason]:
        return [one.reason for one in self.told if isinstance(one, Finished) and one.request_id == name]


def search(name: str, max_tokens: int = 3, rank: int = 0) -> EngineRequest:
    return make_request(name, [5, 6], max_tokens, beams=Beams(width=WIDTH, rank=rank))


def test_the_end_of_a_cancelled_search_leaves_an_equal_one_that_came_after_it() -> None:
    engine = Steps()
    engine.beams.submit(search("first"))
    assert engine.beams.cancel("first")
    engine.beams.submit(search("second"))
    engine.end_cancelled()
    assert engine.reasons("first") == ["cancelled"]
    assert engine.beams.cancel("second")
    engine.end_cancelled()
    assert engine.reasons("second") == ["cancelled"]
    assert engine.live == []


def test_steps_of_two_processes_never_have_the_same_id() -> None:
    one, other = Steps(), Steps()
    for engine in (one, other):
        engine.beams.submit(search("a"))
        engine.beams.submit(search("b", max_tokens=2))
    assert not set(one.live) & set(other.live)
    assert all(step.startswith(PREFIX) and len(step) < 40 for step in one.live)


def test_an_accepted_search_ends_well_in_an_engine_that_others_have_filled() -> None:
    engine = Steps(capacity=WIDTH + 2)
    engine.beams.submit(search("a"))
    assert engine.fill() == 2
    for _ in range(3):
        engine.step()
    assert engine.reasons("a") == ["length"]


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_search_takes_as_many_places_as_it_has_beams_until_its_end(steps: int) -> None:
    engine = Steps(capacity=10)
    engine.beams.submit(search("a"))
    engine.beams.submit(search("b", rank=1))
    for _ in range(steps):
        engine.step()
    assert engine.fill() == 10 - WIDTH


def test_the_places_of_a_search_are_free_after_it() -> None:
    engine = Steps(capacity=10)
    engine.beams.submit(search("a"))
    for _ in range(3):
        engine.step()
    assert engine.fill() == 10


def test_steps_that_outlast_their_search_keep_their_places_until_they_end() -> None:
    engine = Steps(capacity=10)
    engine.beams.submit(search("a"))
    engine.step()
    engine.fail_one()
    assert len(engine.live) == WIDTH - 1
    assert engine.fill() == 10 - (WIDTH - 1)
    engine.end_cancelled()
    assert engine.fill() == WIDTH - 1


def test_a_search_counts_in_the_share_of_its_fairness_key() -> None:
    engine = Steps(capacity_per_key=WIDTH + 1)
    engine.beams.submit(search("a"))
    assert engine.fill() == 1
    with pytest.raises(RequestRefused) as refusal:
        engine.beams.submit(search("b", max_tokens=5))
    assert refusal.value.reason == "share_full"


def test_a_search_that_has_not_all_of_its_places_is_refused_and_takes_none() -> None:
    engine = Steps(capacity=WIDTH)
    engine.accept("other")
    with pytest.raises(RequestRefused) as refusal:
        engine.beams.submit(search("a"))
    assert refusal.value.reason == "overloaded"
    assert engine.live == []
    assert engine.fill() == WIDTH - 1


def test_a_closed_engine_refuses_a_search_and_keeps_no_place_for_it() -> None:
    engine = Steps(capacity=10)
    before = entries(engine.registry)
    engine.beams.submit(search("running"))
    engine.registry.close("The engine is closed.")
    with pytest.raises(RequestRefused) as refusal:
        engine.beams.submit(search("late", max_tokens=5))
    assert refusal.value.reason == "closed"
    engine.step()
    assert engine.reasons("running") == ["cancelled"]
    while not engine.registry.inbox.empty():
        engine.registry.inbox.get()
    assert entries(engine.registry) == before


def test_an_engine_that_loses_all_its_requests_has_all_its_places_again() -> None:
    engine = Steps(capacity=10)
    engine.beams.submit(search("a"))
    engine.accept("other")
    lost = engine.registry.remove_all()
    engine.live.clear()
    engine.beams.deliver([Failed(one.request_id, "engine_dead", "", TokenUsage(prompt=1)) for one in lost])
    assert {one.request_id for one in engine.told if isinstance(one, Failed)} == {"a", "other"}
    assert engine.fill() == 10
