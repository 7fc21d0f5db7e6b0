"""Every engine measures how long a request waited and was prefilled, and counts how it ended."""

from itertools import pairwise

from tests.contract.conftest import Start
from tests.support.engines import Bench, make_prompt, make_request


def test_a_request_that_waits_for_another_has_the_longer_queue_time(start: Start) -> None:
    bench = start(max_running=1)
    with bench.listener.held():
        for n in range(3):
            bench.engine.submit(make_request(str(n), make_prompt(20, n), max_tokens=8))
    times = [bench.listener.outcome(str(n)).last.times for n in range(3)]
    assert all(one.queue is not None and one.prefill is not None for one in times)
    assert all((before.queue or 0.0) < (after.queue or 0.0) for before, after in pairwise(times))


def test_ends_and_tokens_are_counted_for_all_requests(bench: Bench) -> None:
    bench.run(*(make_request(str(n), make_prompt(20, n), max_tokens=8) for n in range(3)))
    stats = bench.engine.stats().requests
    found = stats.distributions
    assert dict(stats.ended) == {"stop": 0, "length": 3, "abort": 0, "error": 0}
    assert (found["prompt_tokens"].total, found["generation_tokens"].total) == (60, 24)
    assert sum(found["time_to_first_token"].counts) == 3
    assert sum(found["inter_token_latency"].counts) == 21
    parts = found["queue_time"].total + found["prefill_time"].total + found["decode_time"].total
    assert 0 < parts <= found["e2e_latency"].total


def test_a_cancelled_request_that_never_ran_has_a_queue_time_and_no_prefill(start: Start) -> None:
    bench = start(max_running=1)
    with bench.listener.held():
        bench.engine.submit(make_request("runs", make_prompt(20), max_tokens=8))
        bench.engine.submit(make_request("dropped", make_prompt(20), max_tokens=8))
        bench.engine.cancel("dropped")
    assert bench.listener.outcome("runs").last.times.prefill is not None
    dropped = bench.listener.outcome("dropped").last.times
    assert dropped.queue is not None
    assert dropped.prefill is None
    assert bench.engine.stats().requests.ended["abort"] == 1
