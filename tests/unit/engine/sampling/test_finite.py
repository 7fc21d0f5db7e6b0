"""What a request computed that ended before anybody read it is shared with nobody."""

from collections.abc import Callable
from typing import Any

import pytest

from engine.request import Finished, Outbound, Tokens
from tests.support.engines import Bench, make_prompt, make_request, start_model, tiny_model
from tests.support.play import Play, limits
from tests.support.poison import POISON, Poison, clean, gather_blocks


def start(**settings: Any) -> Bench:
    bench = start_model(tiny_model(), **settings)
    gather_blocks(bench)
    return bench


def when_count(bench: Bench, request_id: str, count: int, act: Callable[[], None]) -> None:
    """Acts on the engine thread when so many tokens of the request were delivered."""

    def listen(message: Outbound) -> None:
        if message.request_id == request_id and isinstance(message, Tokens):
            said = [m for m in bench.listener.of(request_id) if isinstance(m, Tokens)]
            if len(said) == count:
                act()

    bench.listener.when_told = listen


def test_a_prompt_cancelled_while_it_is_computed_leaves_no_wrong_blocks_to_the_next() -> None:
    bench = start(token_budget=16, max_running=4)
    prompt = clean(make_prompt(120, 3))
    prompt[5] = POISON
    (expected,) = bench.run(make_request("expected", prompt, 8, cache_salt="apart"))
    poison = Poison(bench)
    when_count(bench, "other", 4, lambda: bench.engine.cancel("bad"))
    _, bad = bench.run(make_request("other", clean(make_prompt(9)), 30), make_request("bad", prompt, 8))
    assert isinstance(bad.last, Finished)
    assert (bad.last.reason, bad.tokens) == ("cancelled", [])
    assert poison.hits
    poison.on = False
    (again,) = bench.run(make_request("again", prompt, 8))
    assert isinstance(again.last, Finished)
    assert again.tokens == expected.tokens
    assert again.last.usage.cached == 0
    bench.engine.close(drain=True)


def test_a_prompt_cancelled_while_it_is_computed_leaves_right_blocks_to_the_next() -> None:
    bench = start(token_budget=16, max_running=4)
    when_count(bench, "other", 6, lambda: bench.engine.cancel("long"))
    _, first = bench.run(
        make_request("other", make_prompt(9), 30), make_request("long", make_prompt(120, 3), 8)
    )
    assert first.tokens == []
    (again,) = bench.run(make_request("again", make_prompt(120, 3), 8))
    assert again.last.usage.cached >= 48
    bench.engine.close(drain=True)


@pytest.mark.parametrize("decode", ["eager", "static"])
@pytest.mark.parametrize("count", [8, 12])
def test_a_request_cancelled_with_its_token_in_flight_reaches_no_other(decode: str, count: int) -> None:
    """Its last block goes to a request of another salt, which sees, masked, what lies behind its own."""
    bench = start(pipelined=True, decode=decode, kv_blocks=4, max_running=2)
    prompt = clean(make_prompt(4, 3))
    (expected,) = bench.run(make_request("expected", prompt, 30, cache_salt="a"))
    poison = Poison(bench)
    bad = make_request("bad", clean(make_prompt(16 + count)), 30, logit_bias=((POISON, 100.0),))
    when_count(bench, "bad", 1, lambda: bench.engine.cancel("bad"))
    (cancelled,) = bench.run(bad)
    assert isinstance(cancelled.last, Finished)
    assert poison.hits
    for n in range(3):
        (after,) = bench.run(make_request(f"after {n}", prompt, 30, cache_salt=f"c{n}"))
        assert isinstance(after.last, Finished), after.last
        assert after.tokens == expected.tokens
    bench.engine.close(drain=True)


@pytest.mark.parametrize("decode", ["eager", "static"])
def test_a_request_preempted_with_its_token_in_flight_reaches_no_other(decode: str) -> None:
    """The one that takes its blocks is healthy, whatever was in them."""
    roomy = start(kv_blocks=64)
    requests = [
        make_request("urgent", clean(make_prompt(30, 1)), 60, priority=-1),
        make_request("bad", clean(make_prompt(30, 2)), 60, logit_bias=((POISON, 100.0),)),
    ]
    (expected,) = roomy.run(requests[0])
    roomy.engine.close(drain=True)
    for room in range(6, 9):
        bench = start(pipelined=True, decode=decode, kv_blocks=room, max_running=2)
        Poison(bench, lambda bench=bench: bench.engine.stats().preemptions > 0 or _is_near(bench))  # type: ignore[misc]
        urgent, _ = bench.run(*requests)
        assert isinstance(urgent.last, Finished), urgent.last
        assert urgent.tokens == expected.tokens
        assert bench.engine.stats().preemptions
        bench.engine.close(drain=True)


def _is_near(bench: Bench) -> bool:
    """The next step preempts: no block is free, and the first request's last one is full."""
    scheduler = bench.engine._core._scheduler
    first = next(scheduler.sequences())
    return scheduler.pool.free == 0 and first.length >= len(first.blocks) * scheduler.limits.block_size


# The books


def test_blocks_are_shared_when_they_are_known_to_be_finite_and_not_before() -> None:
    play = Play(limits())
    sequence = play.add(prompt=9, output=4)
    (progress,) = play.scheduler.advance(play.scheduler.plan())
    digests = sequence.block_digests(2, 4)
    assert play.scheduler.pool.lookup(digests) == []
    play.scheduler.confirm(progress)
    assert len(play.scheduler.pool.lookup(digests)) == 2


def test_what_a_sequence_gives_back_unread_is_dirty_and_nothing_else_is() -> None:
    play = Play(limits())
    sequence = play.add(prompt=9, output=4)
    (progress,) = play.scheduler.advance(play.scheduler.plan())
    blocks = list(sequence.blocks)
    play.scheduler.confirm(progress)
    play.scheduler.remove(sequence)
    assert play.scheduler.dirty == []
    other = play.add(prompt=9, output=4)
    play.scheduler.advance(play.scheduler.plan())
    assert len(other.blocks) == len(blocks) == 3
    play.scheduler.remove(other)
    assert play.scheduler.dirty == other_blocks_of(play, blocks)


def other_blocks_of(play: Play, blocks: list[int]) -> list[int]:
    """The two first are shared, and proven; the third was written and not read."""
    return [blocks[2]]


def test_what_was_computed_before_a_preemption_is_not_taken_for_what_comes_after() -> None:
    play = Play(limits())
    sequence = play.add(prompt=9, output=4)
    (progress,) = play.scheduler.advance(play.scheduler.plan())
    play.scheduler._preempt(sequence)
    play.scheduler.plan()
    play.scheduler.confirm(progress)
    assert (sequence.num_finite_tokens, sequence.num_cached_blocks) == (0, 0)
