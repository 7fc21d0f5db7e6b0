"""Which server gets a call, and which gets none."""

from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.remote.engine_protocol import EngineDescription, EngineMismatch
from engine.remote.server_choice import (
    LOAD_FACTOR,
    LOAD_SLACK,
    MAX_PAUSE_SECONDS,
    PREFIX_STRIDE,
    PROBE_SECONDS,
    EngineServer,
    Router,
)
from tests.support.contents import entries
from tests.support.rounds import example_count
from tests.support.routers import FAILED, MODEL, OVERLOADED, REFUSED, begin, call, digests, end, router_of

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
    assert [server and server.url for server in chosen] == [server and server.url for server in again]
    assert len({server.url for server in chosen if server}) > 1


def test_a_server_with_the_prefix_and_clearly_more_work_is_passed_over() -> None:
    router = router_of(2)
    chain = digests("system prompt")
    chosen = [call(router, chain) for _ in range(100)]
    assert len({server.url for server in chosen[:LOAD_SLACK]}) == 1
    first, second = sorted((len(server.calls) for server in router.servers()), reverse=True)
    assert first <= LOAD_FACTOR * (first + second) / 2 + LOAD_SLACK
    assert second > 30


def test_requests_of_others_count_as_work() -> None:
    router = router_of(2)
    one, other = router.servers()
    begin(router, one, digests("a"))
    router.probed(other, MODEL, 5, 0)
    router.probed(one, MODEL, 1, 0)
    assert (one.work, other.work) == (1, 5)
    assert router.choose(digests("b"), "", 0) is one


def test_a_call_with_an_adapter_goes_to_a_server_that_has_it() -> None:
    router = router_of(3)
    for server in router.servers()[:2]:
        router.probed(server, replace(MODEL, adapters={}), None, 0)
    assert {call(router, digests(f"{n}"), adapter="sql").url for n in range(9)} == {"http://e2:8000"}
    assert router.choose(digests("a"), "other", 0) is None


def test_an_avoided_server_is_chosen_only_if_there_is_no_other() -> None:
    router = router_of(2)
    one, other = router.servers()
    assert router.choose(digests("a"), "", 0, avoid={one.url}) is other
    assert router.choose(digests("a"), "", 0, avoid={one.url, other.url}) is not None


def test_every_prefix_is_known_again_by_its_continuation() -> None:
    for known in range(1, 30):
        for more in (0, 1, 7, 8, 20):
            router = router_of(2)
            chain = digests("a", known + more)
            one, _ = router.servers()
            begin(router, one, chain[:known])
            begin(router, one)
            assert router.choose(chain, "", 0) is one


def test_a_shared_beginning_goes_to_the_server_with_less_work_of_those_that_have_it() -> None:
    router = router_of(3)
    start = digests("system", PREFIX_STRIDE)
    one, other, _ = router.servers()
    begin(router, one, [*start, b"x"])
    begin(router, one)
    begin(router, other, [*start, b"y"])
    assert router.choose([*start, b"z"], "", 0) is other
    assert router.choose([*start, b"x"], "", 0) is one


def test_the_known_prefixes_are_bounded_and_the_latest_used_stay() -> None:
    router = router_of(2, max_prefixes=8)
    one, _ = router.servers()
    sizes = []
    for name in "pqrs":
        begin(router, one, digests(name, 3 * PREFIX_STRIDE))
        sizes.append(entries(router) - len(one.calls))
    assert sizes[-1] == sizes[-2]
    assert router.choose(digests("p", 3 * PREFIX_STRIDE), "", 0) is not one
    assert router.choose(digests("s", 3 * PREFIX_STRIDE), "", 0) is one


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
    router.probed(one, replace(MODEL, version="2", adapters={}, context_length=8192), None, 5)
    assert one.state == "up"


def test_a_server_whose_adapter_has_another_origin_is_out() -> None:
    router = router_of(0)
    router.set_urls(["http://a", "http://b", "http://c"])
    one, second, third = router.needs_probe(5)
    router.probed(one, replace(MODEL, adapters={"sql": "/lora/1"}), None, 5)
    router.probed(second, replace(MODEL, adapters={"sql": "/lora/2"}), None, 5)
    router.probed(third, replace(MODEL, adapters={"new": "/new", "sql": "/lora/1"}), None, 5)
    assert second.trouble == "Its sql is of /lora/2, and that of the other engines of /lora/1."
    assert (one.state, third.state) == ("up", "up")


def test_weights_are_told_apart_by_what_servers_say_of_them_and_not_by_their_contexts() -> None:
    first = replace(MODEL, origin="/v1", adapters={"sql": "/lora/1"})
    weights = first.weights()
    assert weights.keys() == {"", "sql"}
    assert replace(first, version="2", context_length=64).weights() == weights
    moved = replace(first, adapters={"sql": "/lora/2"}).weights()
    assert (moved[""], moved["sql"] == weights["sql"]) == (weights[""], False)
    for change in ({"origin": "/v2"}, {"vocabulary": "w"}, {"model": "n"}):
        other = replace(first, **change).weights()  # type: ignore[arg-type]
        assert all(other[name] != weights[name] for name in weights)


def test_a_mismatch_is_said_in_a_sentence() -> None:
    router = Router()
    router.set_urls(["http://a", "http://b"])
    for server in router.needs_probe(0):
        router.probe_failed(server, EngineMismatch("Its version is too old."), 0)
    assert router.trouble() == "None of 2 engines can be used; http://a: Its version is too old."
    router.set_urls([])
    assert router.trouble() == "There is no engine: no URL is known."


def test_a_removed_server_ends_its_calls_and_gets_no_new_ones() -> None:
    router = router_of(2)
    one, other = router.servers()
    begin(router, one, digests("a"))
    router.set_urls([other.url])
    assert one.state == "draining"
    assert router.choose(digests("a"), "", 0) is other
    router.set_urls([])
    assert router.servers() == (one,)
    assert not router.available
    end(router, one, None, 0)
    assert router.servers() == ()


def test_a_removed_server_is_not_probed_any_more() -> None:
    router = router_of(1)
    call(router, digests("a"))
    router.set_urls([])
    assert router.needs_probe(PROBE_SECONDS) == []


def test_a_removed_server_that_comes_back_in_time_goes_on() -> None:
    router = router_of(1)
    server = call(router, digests("a"))
    router.set_urls([])
    router.set_urls([server.url])
    assert router.choose(digests("a"), "", 0) is server
    end(router, server, None, 0)
    assert router.servers() == (server,)


def test_the_probe_of_a_removed_server_changes_nothing() -> None:
    router = Router()
    router.set_urls(["http://a"])
    (server,) = router.needs_probe(0)
    router.set_urls([])
    router.probed(server, MODEL, None, 0)
    router.probe_failed(server, FAILED, 0)
    assert router.description is None
    assert router.servers() == ()


# Any order of events


@dataclass
class World:
    """A router with the calls that run, as a caller of it would know them."""

    router: Router = field(default_factory=lambda: Router(jitter=lambda: 0.5))
    now: float = 0.0
    calls: list[tuple[EngineServer, str]] = field(default_factory=list)

    def step(self, event: str, number: int) -> None:
        self.now += 0.3
        servers = self.router.servers()
        match event:
            case "urls":
                self.router.set_urls([f"http://e{bit}" for bit in range(4) if number >> bit & 1])
            case "probe" | "probe fails" | "probe differs":
                for server in self.router.needs_probe(self.now):
                    if event == "probe fails":
                        self.router.probe_failed(server, FAILED, self.now)
                    else:
                        model = MODEL if event == "probe" else replace(MODEL, vocabulary="w")
                        self.router.probed(server, model, number, self.now)
            case "call":
                chain = digests(f"{number % 3}", 1 + number)
                chosen = self.router.choose(chain, "", self.now, {e.url for e in servers[:1]})
                if chosen is not None:
                    assert chosen.state == "up"
                    self.calls.append((chosen, begin(self.router, chosen, chain)))
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
        running = Counter(server.url for server, _ in world.calls)
        assert {e.url: len(e.calls) for e in world.router.servers() if e.calls} == running
        assert all(e.calls for e in world.router.servers() if e.draining)
        assert world.router.available == (world.router.trouble() is None)
        assert all(e.probe_at <= world.now + MAX_PAUSE_SECONDS for e in world.router.servers())
