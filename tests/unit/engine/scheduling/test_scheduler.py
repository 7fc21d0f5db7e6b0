import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.request import IDLE_PRIORITY
from engine.scheduling.scheduler import CALM_STEPS
from engine.scheduling.sequence import TokenSequence
from tests.support.play import Play, limits
from tests.support.rounds import example_count


def test_a_long_prompt_is_computed_in_chunks_beside_a_request_that_generates() -> None:
    play = Play(limits())
    short = play.add(3, 20)
    play.step()
    long = play.add(70, 1, salt=1)
    counts = []
    while long.request.request_id not in play.ended:
        counts.append({chunk.sequence: chunk.count for chunk in play.step()})
    assert [step[long] for step in counts] == [31, 31, 8]
    assert [step[short] for step in counts] == [1, 1, 1]


def test_where_prompts_are_whole_output_is_computed_again_as_it_first_was() -> None:
    play = Play(limits(whole_prompts=True, token_budget=8))
    other = play.add(5, 9)
    resumed = play.add(40, 2, salt=1, output_offset=3)
    counts = [{chunk.sequence: chunk.count for chunk in play.step()} for _ in range(5)]
    assert [step[resumed] for step in counts] == [37, 1, 1, 1, 1]
    assert [step[other] for step in counts] == [5, 1, 1, 1, 1]
    assert play.ended == {"2": "length"}


def test_chunks_of_one_token_come_first_in_a_plan() -> None:
    play = Play(limits())
    play.add(40, 9)
    play.step()
    play.add(5, 9, salt=1)
    play.step()
    play.add(9, 9, salt=2)
    assert [chunk.count for chunk in play.scheduler.plan()] == [1, 1, 9]


def test_the_youngest_gives_way_when_memory_runs_out_and_comes_back() -> None:
    play = Play(limits(kv_blocks=6))
    old, young = play.add(4, 16), play.add(4, 16, salt=1)
    seen: list[set[TokenSequence]] = []
    while not play.scheduler.idle:
        seen.append({chunk.sequence for chunk in play.step()})
    assert {old, young} in seen, "they began together"
    assert {old} in seen, "the young one had to wait"
    assert all(old in step for step in seen[: seen.index({young})])
    assert play.ended == {"1": "length", "2": "length"}
    assert young.tokens == [*young.request.prompt, *range(4, 20)]


def test_a_request_waits_when_it_would_soon_be_preempted() -> None:
    play = Play(limits(kv_blocks=3))
    play.add(4, 8)
    play.add(5, 3, salt=1)
    play.step()
    assert play.scheduler.running == 1


def test_requests_of_idle_priority_are_computed_only_beside_each_other() -> None:
    play = Play(limits())
    idle = [play.add(20, 9, salt, priority=IDLE_PRIORITY + salt) for salt in range(2)]
    assert sum(chunk.count for chunk in play.step()) == 2, "a sixteenth of the budget, as others may come"
    for _ in range(14):
        play.step()
    computed = [sequence.num_computed_tokens for sequence in idle]
    assert all(computed)
    other = play.add(9, 5, salt=2)
    while other.request.request_id not in play.ended:
        assert {chunk.sequence for chunk in play.step()} == {other}
    assert [sequence.num_computed_tokens for sequence in idle] == computed, "their blocks stayed"
    play.finish()
    assert list(play.ended) == ["3", "1", "2"]


def test_requests_of_idle_priority_give_their_memory_to_every_other() -> None:
    play = Play(limits(kv_blocks=6))
    idle = play.add(12, 6, priority=IDLE_PRIORITY)
    play.step()
    other = play.add(14, 5, salt=1)
    assert {chunk.sequence for chunk in play.step()} == {other}
    assert not idle.blocks
    play.finish()
    assert play.ended == {"1": "length", "2": "length"}
    assert idle.tokens == [*idle.request.prompt, *range(12, 18)]


def test_requests_start_in_the_order_of_their_acceptance() -> None:
    play = Play(limits(max_running=2, token_budget=8))
    sequences = [play.add(6, 3, salt) for salt in range(6)]
    first_seen: list[TokenSequence] = []
    while not play.scheduler.idle:
        first_seen += [c.sequence for c in play.step() if c.sequence not in first_seen]
    assert first_seen == sequences


def test_the_prompt_of_a_running_request_is_reused() -> None:
    play = Play(limits())
    play.add(10, 9)
    play.step()
    second = play.add(10, 1)
    (_, chunk) = play.step()
    assert (chunk.sequence, chunk.start, chunk.count) == (second, 8, 2)
    assert second.cached == 8


def test_the_last_token_is_computed_when_all_of_the_prompt_is_cached() -> None:
    play = Play(limits())
    play.add(8, 1)
    play.step()
    again = play.add(8, 1)
    (chunk,) = play.step()
    assert (chunk.start, chunk.count, again.cached) == (4, 4, 4)


def test_the_budget_shrinks_to_one_token_a_request_and_recovers() -> None:
    play = Play(limits())
    assert [play.scheduler.halve_budget() for _ in range(3)] == [True, True, False]
    sequence = play.add(20, CALM_STEPS * 2)
    assert [play.step()[0].count for _ in range(3)] == [8, 8, 4]
    for _ in range(CALM_STEPS):
        play.step()
    play.end(sequence, "cancelled")
    play.add(20, 1, salt=1)
    assert play.step()[0].count == 16


@pytest.mark.parametrize("state", ["waiting", "prefilling", "generating", "preempted"])
def test_a_cancelled_request_gives_all_its_blocks_back(state: str) -> None:
    play = Play(limits(kv_blocks=10, max_running=1 if state == "waiting" else 8))
    other = play.add(4, 30)
    play.step()
    victim = play.add(9 if state == "generating" else 24, 8, salt=1)
    if state != "waiting":
        play.step()
    while state == "preempted" and victim.blocks:
        play.step()
    play.end(victim, "cancelled")
    assert play.scheduler.pool.used == len(other.blocks)
    while not play.scheduler.idle:
        play.step()
    assert play.scheduler.pool.used == 0


# Priorities


def test_a_request_of_better_priority_starts_before_those_that_came_first() -> None:
    play = Play(limits(max_running=1))
    first, second, urgent = play.add(6, 3), play.add(6, 3, 1), play.add(6, 3, 2, priority=-1)
    play.finish()
    assert [s.admission_order for s in (urgent, first, second)] == [1, 2, 3]


def test_an_urgent_request_takes_the_place_of_the_least_urgent_and_youngest() -> None:
    play = Play(limits(max_running=3))
    fine, old, young = (
        play.add(6, 20, priority=1),
        play.add(6, 20, 1, priority=2),
        play.add(6, 20, 2, priority=2),
    )
    play.step()
    urgent = play.add(6, 20, 3, priority=1)
    assert {chunk.sequence for chunk in play.step()} == {fine, old, urgent}
    assert not young.blocks
    assert play.scheduler.counters.preemptions == 1
    play.finish()
    assert len(young.tokens) == 26


def test_an_urgent_request_takes_the_memory_of_as_many_as_it_needs() -> None:
    play = Play(limits(kv_blocks=11))
    others = [play.add(8, 8, salt, priority=5) for salt in range(3)]
    play.step()
    play.add(24, 4, 9)
    play.step()
    assert [bool(other.blocks) for other in others] == [True, False, False]


def test_an_urgent_request_preempts_nobody_when_that_would_not_be_enough() -> None:
    play = Play(limits(kv_blocks=12))
    play.add(24, 16)
    lesser = play.add(4, 8, 1, priority=5)
    play.step()
    play.add(24, 4, 9)
    play.step()
    assert lesser.blocks
    assert play.scheduler.counters.preemptions == 0


def test_a_request_is_never_preempted_for_one_of_its_own_priority_that_came_later() -> None:
    play = Play(limits(kv_blocks=8, max_running=2))
    first = play.add(12, 16)
    play.step()
    play.add(12, 4, 1)
    while first.request.request_id not in play.ended:
        assert first in {chunk.sequence for chunk in play.step()}


def test_an_urgent_prompt_is_computed_before_one_that_was_begun() -> None:
    play = Play(limits())
    long = play.add(200, 1)
    play.step()
    urgent = play.add(20, 1, 1, priority=-1)
    assert [(c.sequence, c.count) for c in play.step()] == [(urgent, 20), (long, 12)]


# Shares that run nothing


@pytest.mark.parametrize("blocks", [64, 11], ids=["places", "memory"])
def test_a_share_that_runs_nothing_gets_a_place_of_one_that_has_them_all(blocks: int) -> None:
    play = Play(limits(max_running=4, kv_blocks=blocks))
    greedy = [play.add(4, 100 if blocks > 11 else 8, salt, fairness_key="greedy") for salt in range(4)]
    play.step()
    modest = play.add(4, 3, 9, fairness_key="modest")
    play.step()
    assert modest.blocks
    assert [bool(request.blocks) for request in greedy] == [True, True, True, False]
    while modest.request.request_id not in play.ended:
        play.step()
    play.step()
    assert all(request.blocks for request in greedy), "the one that made room is back"


def test_a_share_keeps_the_one_request_that_it_runs() -> None:
    play = Play(limits(max_running=2))
    running = [play.add(6, 20, salt, fairness_key=fairness_key) for salt, fairness_key in enumerate("ab")]
    play.step()
    waiting = play.add(6, 20, 5, fairness_key="c")
    for _ in range(5):
        play.step()
    assert all(request.blocks for request in running)
    assert not waiting.blocks


def test_a_more_urgent_request_makes_no_room_for_another_share() -> None:
    play = Play(limits(max_running=2))
    urgent = [play.add(6, 20, salt, priority=-1, fairness_key="a") for salt in range(2)]
    play.step()
    play.add(6, 20, 5, fairness_key="b")
    play.step()
    assert all(request.blocks for request in urgent)


def test_a_share_whose_less_urgent_request_gave_way_still_gets_a_place_for_an_urgent_one() -> None:
    play = Play(limits(max_running=2))
    lesser = play.add(6, 20, priority=5, fairness_key="modest")
    play.step()
    greedy = [play.add(6, 40, salt, fairness_key="greedy") for salt in (1, 2, 3)]
    play.step()
    assert not lesser.blocks
    urgent = play.add(6, 3, 9, fairness_key="modest")
    for _ in range(2):
        play.step()
    assert urgent.blocks
    assert [bool(request.blocks) for request in greedy] == [True, False, False]
    play.finish()
    assert len(lesser.tokens) == 26


# Whatever comes


@settings(max_examples=example_count(150), deadline=None)
@given(st.data())
def test_every_request_ends_once_and_no_block_is_lost_whatever_comes(data: st.DataObject) -> None:
    blocks = data.draw(st.integers(4, 20), label="blocks")
    running = data.draw(st.integers(1, 6), label="running")
    play = Play(
        limits(
            kv_blocks=blocks,
            max_running=running,
            token_budget=data.draw(st.integers(running, 24), label="budget"),
        )
    )
    held = play.held()
    live: list[TokenSequence] = []
    for _ in range(data.draw(st.integers(1, 40), label="length")):
        match data.draw(st.sampled_from(["add", "add", "step", "step", "cancel", "shrink"])):
            case "add":
                prompt = data.draw(st.integers(1, blocks * 4 - 1))
                output = data.draw(st.integers(1, min(12, blocks * 4 - prompt)))
                # Three salts: most requests share a beginning with some other.
                salt = data.draw(st.integers(0, 2))
                priority = data.draw(st.sampled_from([0, 0, 0, -1, 5]))
                fairness_key = data.draw(st.sampled_from("abc"))
                live.append(play.add(prompt, output, salt, priority=priority, fairness_key=fairness_key))
            case "step" if not play.scheduler.idle:
                check_step(play)
            case "cancel" if live:
                sequence = live.pop(data.draw(st.integers(0, len(live) - 1)))
                if sequence.request.request_id not in play.ended:
                    play.end(sequence, "cancelled")
            case "shrink":
                play.scheduler.halve_budget()
    steps = 0
    while not play.scheduler.idle:
        check_step(play)
        steps += 1
        assert steps < 5000, "a request starves"
    assert len(play.ended) == play.arrivals
    assert play.scheduler.pool.free == blocks
    assert play.held() == held, "something is kept of requests that have ended"


def check_step(play: Play) -> None:
    """Steps, and checks what must hold of any plan."""
    before = list(play.scheduler.sequences())
    best = min(sequence.request.priority for sequence in before)
    turned = [s for s in before if s.request.priority == best and s.admission_order is not None]
    plan = play.step()
    chunks = {chunk.sequence for chunk in plan}
    if turned:
        first = min(turned, key=rank)
        others = {s.request.fairness_key for s in chunks} - {first.request.fairness_key}
        made_room = not first.blocks and others
        assert first in chunks or made_room, "the first request in the order must move, unless it made room"
    else:
        best_moves = best in {s.request.priority for s in chunks}
        assert best_moves or len({s.request.fairness_key for s in before}) > 1, (
            "the first in the order must move"
        )
    assert len(chunks) == len(plan) <= play.limits.max_running
    assert sum(chunk.count for chunk in plan) <= play.limits.token_budget
    assert all(chunk.count >= 1 for chunk in plan)
    counts = [chunk.count for chunk in plan]
    assert counts == [1] * counts.count(1) + [count for count in counts if count > 1]
    after = list(play.scheduler.sequences())
    running = [s for s in after if s.blocks]
    put_back = [s for s in after if not s.blocks and s.admission_order is not None]
    for later in running:
        earlier = [s for s in put_back if rank(s) < rank(later)]
        shares = {s.request.fairness_key for s in earlier}
        assert later.request.fairness_key not in shares, "one was preempted for a later one of its share"


def rank(sequence: TokenSequence) -> tuple[int, int]:
    assert sequence.admission_order is not None
    return sequence.request.priority, sequence.admission_order
