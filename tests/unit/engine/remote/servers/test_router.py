"""Which server gets a call, and which gets none."""

from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.remote.interface import EngineDescription, EngineLoad, EngineMismatch
from engine.remote.servers.router import (
    LOAD_FACTOR,
    LOAD_SLACK,
    MAX_PAUSE_SECONDS,
    PROBE_SECONDS,
    Endpoint,
    Router,
)
from tests.support.rounds import example_count
from tests.support.routers import FAILED, MODEL, OVERLOADED, REFUSED, call, digests, end, router_of

# Affinity and load


def test_a_conversation_goes_on_where_it_was() -> None:
    router = router_of(3)
    for number in range(12):
        chain = digests(f"conversation {number}", 20)
        first = call(router, chain[:3])
        for length in (7, 8, 15, 20):
            end(router, first, None, 0)
            assert call(router, chain[:length]) is first


def test_calls_without_a_known_prefix_are_spread_evenly() -> None:
    router = router_of(4)
    chosen = Counter(call(router, digests(f"{number}")).url for number in range(40))
    assert set(chosen.values()) == {10}


def test_routers_that_know_nothing_choose_the_same_server() -> None:
    one, other = router_of(5), router_of(5)
    names = [f"{number}" for number in range(30)]
    chosen = [one.choose(digests(name), "", 0) for name in names]
    again = [other.choose(digests(name), "", 0) for name in names]
    assert [endpoint and endpoint.url for endpoint in chosen] == [
        endpoint and endpoint.url for endpoint in again
    ]
    assert len({endpoint.url for endpoint in chosen if endpoint}) > 1


def test_a_server_with_the_prefix_and_clearly_more_work_is_passed_over() -> None:
    router = router_of(2)
    chain = digests("system prompt")
    chosen = [call(router, chain) for _ in range(100)]
    assert len({endpoint.url for endpoint in chosen[:LOAD_SLACK]}) == 1
    first, second = sorted((endpoint.running for endpoint in router.endpoints()), reverse=True)
    assert first <= LOAD_FACTOR * (first + second) / 2 + LOAD_SLACK
    assert second > 30


def test_requests_of_others_count_as_work() -> None:
    router = router_of(2)
    one, other = router.endpoints()
    router.begin(one, digests("a"))
    router.probed(other, MODEL, EngineLoad(running=3, waiting=2), 0)
    router.probed(one, MODEL, EngineLoad(running=1, waiting=0), 0)
    assert (one.work, other.work) == (1, 5)
    assert router.choose(digests("b"), "", 0) is one


def test_a_server_has_no_more_calls_than_the_bound() -> None:
    router = router_of(2, max_calls=3)
    for _ in range(6):
        call(router, digests("a"))
    assert [endpoint.running for endpoint in router.endpoints()] == [3, 3]
    assert router.choose(digests("a"), "", 0) is None


def test_a_call_with_an_adapter_goes_to_a_server_that_has_it() -> None:
    router = router_of(3)
    for endpoint in router.endpoints()[:2]:
        router.probed(endpoint, replace(MODEL, adapters=()), None, 0)
    assert {call(router, digests(f"{n}"), adapter="sql").url for n in range(9)} == {"http://e2:8000"}
    assert router.choose(digests("a"), "other", 0) is None


def test_an_avoided_server_is_chosen_only_if_there_is_no_other() -> None:
    router = router_of(2)
    one, other = router.endpoints()
    assert router.choose(digests("a"), "", 0, avoid={one.url}) is other
    assert router.choose(digests("a"), "", 0, avoid={one.url, other.url}) is not None


# Fleet


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (replace(MODEL, model="n"), "It serves n, and the other engines m."),
        (replace(MODEL, vocabulary="w"), "Its m has another vocabulary than that of the other engines."),
        (
            replace(MODEL, context_length=64),
            "Its context of 64 tokens is shorter than the 4096 of the other engines.",
        ),
        (
            replace(MODEL, origin="/new"),
            "Its m is of /new, and that of the other engines of an unknown origin.",
        ),
    ],
)
def test_a_server_with_another_model_is_out_until_a_probe_fits(
    other: EngineDescription, sentence: str
) -> None:
    router = router_of(2)
    one, second = router.needs_probe(5)
    router.probed(second, MODEL, None, 5)
    router.probed(one, other, None, 5)
    assert (one.state, one.trouble) == ("unfit", sentence)
    assert {call(router, digests(f"{n}"), 5).url for n in range(5)} == {second.url}
    assert one in router.needs_probe(6)
    router.probed(one, MODEL, None, 6)
    assert one.state == "up"


def test_a_version_or_adapters_of_its_own_or_a_longer_context_are_no_mismatch() -> None:
    router = router_of(2)
    one, _ = router.needs_probe(5)
    router.probed(one, replace(MODEL, version="2", adapters=(), context_length=8192), None, 5)
    assert one.state == "up"


def test_a_server_whose_adapter_has_another_origin_is_out() -> None:
    router = router_of(0)
    router.set_urls(["http://a", "http://b", "http://c"])
    one, second, third = router.needs_probe(5)
    router.probed(one, replace(MODEL, adapter_origins=("/lora/1",)), None, 5)
    router.probed(second, replace(MODEL, adapter_origins=("/lora/2",)), None, 5)
    router.probed(
        third, replace(MODEL, adapters=("new", "sql"), adapter_origins=("/new", "/lora/1")), None, 5
    )
    assert second.trouble == "Its sql is of /lora/2, and that of the other engines of /lora/1."
    assert (one.state, third.state) == ("up", "up")


def test_weights_are_told_apart_by_what_servers_say_of_them_and_not_by_their_contexts() -> None:
    first = replace(MODEL, origin="/v1", adapter_origins=("/lora/1",))
    weights = first.weights()
    assert weights.keys() == {"", "sql"}
    assert replace(first, version="2", context_length=64).weights() == weights
    moved = replace(first, adapter_origins=("/lora/2",)).weights()
    assert (moved[""], moved["sql"] == weights["sql"]) == (weights[""], False)
    for change in ({"origin": "/v2"}, {"vocabulary": "w"}, {"model": "n"}):
        other = replace(first, **change).weights()  # type: ignore[arg-type]
        assert all(other[name] != weights[name] for name in weights)


def test_a_mismatch_is_said_in_a_sentence() -> None:
    router = Router()
    router.set_urls(["http://a", "http://b"])
    for endpoint in router.needs_probe(0):
        router.probe_failed(endpoint, EngineMismatch("Its version is too old."), 0)
    assert router.trouble() == "None of 2 engines can be used; http://a: Its version is too old."
    router.set_urls([])
    assert router.trouble() == "There is no engine: no URL is known."


def test_a_removed_server_ends_its_calls_and_gets_no_new_ones() -> None:
    router = router_of(2)
    one, other = router.endpoints()
    router.begin(one, digests("a"))
    router.set_urls([other.url])
    assert one.state == "draining"
    assert router.choose(digests("a"), "", 0) is other
    router.set_urls([])
    assert router.endpoints() == (one,)
    assert not router.available
    end(router, one, None, 0)
    assert router.endpoints() == ()


def test_a_removed_server_is_probed_as_long_as_it_has_calls() -> None:
    router = router_of(1)
    endpoint = call(router, digests("a"))
    router.set_urls([])
    for now in (PROBE_SECONDS, 2 * PROBE_SECONDS):
        assert router.needs_probe(now) == [endpoint]
        assert router.needs_probe(now) == []
        router.probed(endpoint, MODEL, None, now)
        assert endpoint.state == "draining"
    end(router, endpoint, None, 0)
    assert router.needs_probe(99) == []


def test_a_removed_server_that_comes_back_in_time_goes_on() -> None:
    router = router_of(1)
    endpoint = call(router, digests("a"))
    router.set_urls([])
    router.set_urls([endpoint.url])
    assert router.choose(digests("a"), "", 0) is endpoint
    end(router, endpoint, None, 0)
    assert router.endpoints() == (endpoint,)


def test_the_probe_of_a_removed_server_changes_nothing() -> None:
    router = Router()
    router.set_urls(["http://a"])
    (endpoint,) = router.needs_probe(0)
    router.set_urls([])
    router.probed(endpoint, MODEL, None, 0)
    router.probe_failed(endpoint, FAILED, 0)
    assert router.description is None
    assert router.endpoints() == ()


# Any order of events


@dataclass
class World:
    """A router with the calls that run, as a caller of it would know them."""

    router: Router = field(default_factory=lambda: Router(max_calls=4, jitter=lambda: 0.5))
    now: float = 0.0
    calls: list[tuple[Endpoint, int]] = field(default_factory=list)

    def step(self, event: str, number: int) -> None:
        self.now += 0.3
        endpoints = self.router.endpoints()
        match event:
            case "urls":
                self.router.set_urls([f"http://e{bit}" for bit in range(4) if number >> bit & 1])
            case "probe" | "probe fails" | "probe differs":
                for endpoint in self.router.needs_probe(self.now):
                    if event == "probe fails":
                        self.router.probe_failed(endpoint, FAILED, self.now)
                    else:
                        model = MODEL if event == "probe" else replace(MODEL, vocabulary="w")
                        self.router.probed(endpoint, model, EngineLoad(running=number), self.now)
            case "call":
                chain = digests(f"{number % 3}", 1 + number)
                chosen = self.router.choose(chain, "", self.now, {e.url for e in endpoints[:1]})
                if chosen is not None:
                    assert chosen.state == "up"
                    assert chosen.running < 4
                    self.calls.append((chosen, self.router.begin(chosen, chain)))
            case _ if self.calls:
                fault = {"ends": None, "fails": FAILED, "overloads": OVERLOADED, "refuses": REFUSED}[event]
                self.router.end(*self.calls.pop(number % len(self.calls)), fault, self.now)


EVENTS = ["urls", "probe", "probe fails", "probe differs", "call", "call", "call", "ends", "fails"]
EVENTS += ["overloads", "refuses"]


@given(st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 15)), max_size=60))
@settings(max_examples=example_count(150), deadline=None)
def test_whatever_happens_calls_are_counted_and_go_to_servers_that_are_up(
    events: list[tuple[str, int]],
) -> None:
    world = World()
    world.step("urls", 15)
    for event, number in events:
        world.step(event, number)
        running = Counter(endpoint.url for endpoint, _ in world.calls)
        assert {e.url: e.running for e in world.router.endpoints() if e.running} == running
        assert all(e.running for e in world.router.endpoints() if e.draining)
        assert world.router.available == (world.router.trouble() is None)
        assert all(epoch <= endpoint.epoch for endpoint, epoch in world.calls)
        assert all(e.probe_at <= world.now + MAX_PAUSE_SECONDS for e in world.router.endpoints())
