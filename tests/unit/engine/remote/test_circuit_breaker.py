"""When a server gets no calls because of those that failed, and when it gets some again."""

from dataclasses import replace
from math import inf

from engine.remote.server_choice import (
    FIRST_PAUSE_SECONDS,
    MAX_PAUSE_SECONDS,
    OVERLOAD_PAUSE_SECONDS,
    PROBE_SECONDS,
    Router,
)
from tests.support.routers import FAILED, MODEL, OVERLOADED, REFUSED, begin, call, digests, end, router_of


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
    server = call(router, digests("a"))
    end(router, server, FAILED, 10)
    assert router.choose(digests("a"), "", 10) is None
    assert router.trouble() == "The engine http://e0:8000 cannot be used: The connection was lost."
    assert router.needs_probe(10) == []
    assert router.needs_probe(10 + FIRST_PAUSE_SECONDS) == [server]
    assert router.choose(digests("a"), "", 11) is None
    router.probed(server, MODEL, None, 11)
    assert router.choose(digests("a"), "", 11) is server


def test_the_pause_grows_with_each_failure_in_a_row_to_its_bound() -> None:
    router = router_of(1)
    server = call(router, digests("a"))
    end(router, server, FAILED, 0)
    now, pauses = 0.0, []
    for _ in range(10):
        pauses.append(server.probe_at - now)
        now = server.probe_at
        assert router.needs_probe(now) == [server]
        router.probe_failed(server, FAILED, now)
    assert pauses[:4] == [0.5, 1, 2, 4]
    assert pauses[-1] == MAX_PAUSE_SECONDS


def test_the_pause_grows_for_a_server_that_answers_probes_and_fails_every_call() -> None:
    router, now, pauses = router_of(1), 0.0, []
    for _ in range(8):
        end(router, call(router, digests("a"), now), FAILED, now)
        (server,) = router.servers()
        pauses.append(server.probe_at - now)
        now = server.probe_at
        assert router.needs_probe(now)
        router.probed(server, MODEL, None, now)
    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30]
    end(router, call(router, digests("a"), now), None, now)
    end(router, call(router, digests("a"), now), FAILED, now)
    assert server.probe_at - now == FIRST_PAUSE_SECONDS


def test_calls_that_fail_together_open_the_circuit_once() -> None:
    router = router_of(1)
    (server,) = router.servers()
    calls = [begin(router, server) for _ in range(32)]
    for call_id in calls:
        router.end(server, call_id, FAILED, 0)
    assert (server.probe_at, server.failures) == (FIRST_PAUSE_SECONDS, 1)


def test_progress_is_that_of_servers_that_may_take_the_call() -> None:
    router = router_of(3)
    one, other, removed = router.servers()
    router.probed(other, replace(MODEL, adapters={}), None, 0)
    assert router.progress_at("sql") == -inf
    begin(router, removed)
    router.set_urls([one.url, other.url])
    one.chunk_at, other.chunk_at, removed.chunk_at = 7, 8, 9
    assert (router.progress_at(""), router.progress_at("sql")) == (8, 7)


def test_the_pause_has_full_jitter() -> None:
    router = router_of(1, jitter=0.0)
    server = call(router, [])
    end(router, server, FAILED, 7)
    assert server.probe_at == 7


def test_an_overloaded_server_gets_no_new_call_for_a_moment() -> None:
    router = router_of(2)
    one, other = router.servers()
    begin(router, one, digests("a"))
    end(router, one, OVERLOADED, 10)
    assert one.state == "up"
    assert router.choose(digests("a"), "", 10) is other
    assert router.choose(digests("a"), "", 10 + OVERLOAD_PAUSE_SECONDS) is one
    end(router, call(router, digests("b"), 10), OVERLOADED, 10)
    assert router.choose(digests("a"), "", 10) is None
    assert router.available


def test_a_refused_call_is_no_failure_of_its_server() -> None:
    router = router_of(1)
    server = call(router, digests("a"))
    end(router, server, REFUSED, 0)
    assert router.choose(digests("a"), "", 0) is server


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
    assert router.needs_probe(PROBE_SECONDS - 0.1) == []
    assert len(router.needs_probe(PROBE_SECONDS)) == 2


def test_an_overloaded_probe_leaves_a_known_server_in_use() -> None:
    router = router_of(1)
    (server,) = router.needs_probe(5)
    router.probe_failed(server, OVERLOADED, 5)
    assert (server.state, router.choose([], "", 5)) == ("up", None)
    assert router.choose([], "", 6) is server
