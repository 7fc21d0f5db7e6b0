"""When a server gets no calls because of those that failed, and when it gets some again."""

from dataclasses import replace
from math import inf

from engine.remote.interface import EngineFault, EngineLoad
from engine.remote.servers.router import (
    FIRST_PAUSE_SECONDS,
    MAX_PAUSE_SECONDS,
    OVERLOAD_PAUSE_SECONDS,
    PROBE_SECONDS,
    Router,
)
from tests.support.routers import FAILED, MODEL, OVERLOADED, REFUSED, call, digests, end, router_of


def test_a_server_gets_no_call_before_a_probe_succeeded() -> None:
    router = Router()
    router.set_urls(["http://a", "http://b"])
    assert router.choose([], "", 0) is None
    assert not router.available
    assert router.trouble() == "The engine http://a has not answered its first probe yet."
    one, other = router.needs_probe(0)
    assert router.needs_probe(0) == []
    router.probed(one, MODEL, None, 0)
    assert router.choose([], "", 0) is one
    router.probe_failed(other, FAILED, 0)
    assert router.trouble() is None


def test_a_server_that_failed_gets_no_call_until_a_probe_succeeds() -> None:
    router = router_of(1)
    endpoint = call(router, digests("a"))
    end(router, endpoint, FAILED, 10)
    assert router.choose(digests("a"), "", 10) is None
    assert router.trouble() == "The engine http://e0:8000 cannot be used: The connection was lost."
    assert router.needs_probe(10) == []
    assert router.needs_probe(10 + FIRST_PAUSE_SECONDS) == [endpoint]
    assert router.choose(digests("a"), "", 11) is None
    router.probed(endpoint, MODEL, None, 11)
    assert router.choose(digests("a"), "", 11) is endpoint


def test_the_pause_grows_with_each_failure_in_a_row_to_its_bound() -> None:
    router = router_of(1)
    endpoint = call(router, digests("a"))
    end(router, endpoint, FAILED, 0)
    now, pauses = 0.0, []
    for _ in range(10):
        pauses.append(endpoint.probe_at - now)
        now = endpoint.probe_at
        assert router.needs_probe(now) == [endpoint]
        router.probe_failed(endpoint, FAILED, now)
    assert pauses[:4] == [0.5, 1, 2, 4]
    assert pauses[-1] == MAX_PAUSE_SECONDS


def test_the_pause_grows_for_a_server_that_answers_probes_and_fails_every_call() -> None:
    router, now, pauses = router_of(1), 0.0, []
    for _ in range(8):
        end(router, call(router, digests("a"), now), FAILED, now)
        (endpoint,) = router.endpoints()
        pauses.append(endpoint.probe_at - now)
        now = endpoint.probe_at
        assert router.needs_probe(now)
        router.probed(endpoint, MODEL, None, now)
    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30]
    end(router, call(router, digests("a"), now), None, now)
    end(router, call(router, digests("a"), now), FAILED, now)
    assert endpoint.probe_at - now == FIRST_PAUSE_SECONDS


def test_calls_of_before_the_circuit_opened_do_not_open_it_again() -> None:
    router = router_of(1)
    (endpoint,) = router.endpoints()
    epochs = [router.begin(endpoint, []) for _ in range(32)]
    for epoch in epochs[:31]:
        router.end(endpoint, epoch, FAILED, 0)
    assert endpoint.probe_at == FIRST_PAUSE_SECONDS
    router.needs_probe(1)
    router.probed(endpoint, MODEL, None, 1)
    router.end(endpoint, epochs[31], FAILED, 2)
    assert endpoint.state == "up"


def test_however_many_older_calls_go_on_the_first_new_one_that_fails_opens_the_circuit() -> None:
    router = router_of(1)
    (endpoint,) = router.endpoints()
    epochs = [router.begin(endpoint, []) for _ in range(200)]
    router.end(endpoint, epochs[0], FAILED, 0)
    router.needs_probe(1)
    router.probed(endpoint, MODEL, None, 1)
    router.end(endpoint, router.begin(endpoint, []), FAILED, 2)
    assert (endpoint.state, endpoint.running) == ("broken", 199)


def test_a_call_that_a_working_server_has_lost_is_no_failure_of_the_server() -> None:
    router = router_of(2)
    chain = digests("a", 30)
    first = call(router, chain)
    end(router, first, EngineFault("lost", "It goes on with other calls."), 0)
    assert first.state == "up"
    assert call(router, chain) is first


def test_a_server_that_says_how_many_requests_wait_is_known_to_have_none_from_the_first_report_of_none() -> (
    None
):
    router = router_of(1)
    (endpoint,) = router.endpoints()
    for now, waiting in ((5, 0), (10, 3), (15, 0), (20, 0)):
        router.probed(endpoint, MODEL, EngineLoad(waiting=waiting), now)
    assert (endpoint.signs.unqueued_from, endpoint.signs.unqueued_until) == (15, 20)
    router.probed(endpoint, MODEL, None, 25)
    assert endpoint.signs.unqueued_until == -inf


def test_progress_is_that_of_servers_that_may_take_the_call() -> None:
    router = router_of(3)
    one, other, removed = router.endpoints()
    router.probed(other, replace(MODEL, adapters=()), None, 0)
    assert router.progress_at("sql") == -inf
    router.begin(removed, [])
    router.set_urls([one.url, other.url])
    one.signs.chunk_at, other.signs.chunk_at, removed.signs.chunk_at = 7, 8, 9
    assert (router.progress_at(""), router.progress_at("sql")) == (8, 7)


def test_the_pause_has_full_jitter() -> None:
    router = router_of(1, jitter=0.0)
    endpoint = call(router, [])
    end(router, endpoint, FAILED, 7)
    assert endpoint.probe_at == 7


def test_an_overloaded_server_gets_no_new_call_for_a_moment() -> None:
    router = router_of(2)
    one, other = router.endpoints()
    router.begin(one, digests("a"))
    end(router, one, OVERLOADED, 10)
    assert one.state == "up"
    assert router.choose(digests("a"), "", 10) is other
    assert router.choose(digests("a"), "", 10 + OVERLOAD_PAUSE_SECONDS) is one
    end(router, call(router, digests("b"), 10), OVERLOADED, 10)
    assert router.choose(digests("a"), "", 10) is None
    assert router.available


def test_a_refused_call_is_no_failure_of_its_server() -> None:
    router = router_of(1)
    endpoint = call(router, digests("a"))
    end(router, endpoint, REFUSED, 0)
    assert router.choose(digests("a"), "", 0) is endpoint


def test_a_server_that_failed_has_no_prefixes_when_it_comes_back() -> None:
    router = router_of(2)
    chain = digests("a", 30)
    first = call(router, chain)
    end(router, first, FAILED, 0)
    second = call(router, chain)
    assert second is not first
    router.needs_probe(1)
    router.probed(first, MODEL, None, 1)
    assert call(router, chain, 1) is second


def test_healthy_servers_are_probed_every_few_seconds() -> None:
    router = router_of(2)
    assert router.next_probe() == PROBE_SECONDS
    assert router.needs_probe(PROBE_SECONDS - 0.1) == []
    assert len(router.needs_probe(PROBE_SECONDS)) == 2
    assert router.next_probe() is None


def test_an_overloaded_probe_leaves_a_known_server_in_use() -> None:
    router = router_of(1)
    (endpoint,) = router.needs_probe(5)
    router.probe_failed(endpoint, OVERLOADED, 5)
    assert (endpoint.state, router.choose([], "", 5)) == ("up", None)
    assert router.choose([], "", 6) is endpoint
