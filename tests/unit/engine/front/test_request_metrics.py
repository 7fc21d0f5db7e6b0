"""How long requests took: the histograms of an engine, and the times of one request."""

import pytest

from engine.front.request_metrics import FIRST_TOKEN_BOUNDS, RequestMetrics, token_bounds
from engine.request import EngineRequest, SamplingParams
from engine.scheduling.sequence import TokenSequence
from engine.stats_snapshot import Distribution, Histogram, RequestTimes


def _sequence(name: str = "a", adapter: str = "") -> TokenSequence:
    request = EngineRequest(
        request_id=name, prompt=(1, 2, 3), max_tokens=7, sampling=SamplingParams(seed=1), adapter=adapter
    )
    return TokenSequence(request)


def _count(distribution: Distribution) -> int:
    return sum(distribution.counts)


def test_a_value_at_a_bound_is_in_its_bucket_and_one_above_all_bounds_in_the_last() -> None:
    histogram = Histogram((1.0, 2.0))
    histogram.observe(1.0)
    histogram.observe(1.5, 3)
    histogram.observe(9.0)
    assert histogram.values == Distribution((1.0, 2.0), (1, 3, 1), 14.5)


def test_the_bounds_of_token_counts_end_with_the_context_length() -> None:
    assert token_bounds(100) == (1, 2, 5, 10, 20, 50, 100)
    assert token_bounds(99) == (1, 2, 5, 10, 20, 50)
    assert token_bounds(0) == ()


def test_queue_prefill_and_decode_add_up_to_the_time_in_the_engine() -> None:
    metrics, sequence = RequestMetrics(100), _sequence()
    metrics.admitted(sequence, 10.0)
    metrics.started([sequence], 12.0)
    metrics.started([sequence], 12.5)
    metrics.tokens(frozenset([sequence]), 15.0)
    sequence.append(4)
    metrics.tokens(frozenset([sequence]), 16.0)
    sequence.append(5)
    assert metrics.ended(sequence, "stop", 16.0) == RequestTimes(queue=2.0, prefill=3.0)
    found = metrics.stats.distributions
    totals = {name: one.total for name, one in found.items() if name.endswith(("time", "latency"))}
    assert totals == {
        "queue_time": 2.0,
        "prefill_time": 3.0,
        "decode_time": 1.0,
        "inference_time": 4.0,
        "e2e_latency": 6.0,
        "inter_token_latency": 1.0,
    }
    assert found["time_to_first_token"].total == 5.0
    assert found["time_per_output_token"].total == 1.0
    assert found["generation_tokens"].total == 2
    assert metrics.stats.ended == {"stop": 1, "length": 0, "abort": 0, "error": 0}


def test_a_request_that_ends_in_the_queue_has_waited_all_its_time() -> None:
    metrics, sequence = RequestMetrics(100), _sequence()
    metrics.admitted(sequence, 10.0)
    assert metrics.ended(sequence, "abort", 14.0) == RequestTimes(queue=4.0)
    assert _count(metrics.stats.distributions["prefill_time"]) == 0
    assert _count(metrics.stats.distributions["queue_time"]) == 1


def test_tokens_that_come_together_share_the_time_since_the_last_ones() -> None:
    metrics, sequence = RequestMetrics(100), _sequence()
    metrics.admitted(sequence, 0.0)
    metrics.started([sequence], 0.0)
    metrics.received(sequence, 1, 1.0)
    metrics.received(sequence, 4, 2.0)
    gaps = metrics.stats.distributions["inter_token_latency"]
    assert _count(gaps) == 4
    assert gaps.total == pytest.approx(1.0)


def test_rows_of_one_step_are_counted_each() -> None:
    metrics, rows = RequestMetrics(100), [_sequence("a"), _sequence("b"), _sequence("c")]
    for row in rows:
        metrics.admitted(row, 0.0)
    metrics.tokens(frozenset(rows), 1.0)
    metrics.tokens(frozenset(rows[:2]), 1.5)
    metrics.tokens(frozenset(rows), 2.0)
    gaps = metrics.stats.distributions["inter_token_latency"]
    assert _count(gaps) == 5
    assert gaps.total == pytest.approx(2 * 0.5 + 2 * 0.5 + 1.0)
    first = metrics.stats.distributions["time_to_first_token"]
    assert first.counts[FIRST_TOKEN_BOUNDS.index(1.0)] == 3


def test_tokens_of_an_accepted_draft_are_counted_each_and_share_their_step() -> None:
    metrics, (first, second) = RequestMetrics(100), [_sequence("a"), _sequence("b")]
    for row in (first, second):
        metrics.admitted(row, 0.0)
    metrics.tokens(frozenset((first, second)), 1.0)
    metrics.tokens(frozenset((first, second)), 2.0, {first: 4})
    metrics.tokens(frozenset((second,)), 3.0)
    metrics.tokens(frozenset((first, second)), 4.0, {first: 5})
    gaps = metrics.stats.distributions["inter_token_latency"]
    assert _count(gaps) == 4 + 1 + 1 + 5 + 1
    assert gaps.total == pytest.approx(1.0 + 1.0 + 1.0 + 2.0 + 1.0)


def test_adapters_are_named_while_their_requests_wait_and_run() -> None:
    metrics, waits, runs = RequestMetrics(100), _sequence("a", "pirate"), _sequence("b", "poet")
    metrics.admitted(waits, 0.0)
    metrics.admitted(runs, 0.0)
    metrics.started([runs], 1.0)
    assert (metrics.stats.waiting_adapters, metrics.stats.running_adapters) == (("pirate",), ("poet",))
    metrics.ended(waits, "abort", 2.0)
    metrics.ended(runs, "stop", 2.0)
    assert (metrics.stats.waiting_adapters, metrics.stats.running_adapters) == ((), ())
