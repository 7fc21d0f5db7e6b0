"""Drafts are as long as it pays: by what rows cost, how often drafts came true, and how many share a step."""

import pytest

from engine.config import SchedulerLimits
from engine.scheduling.drafts import MAX_DRAFT, DraftPlanner, StepCosts
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.sequence import TokenSequence
from tests.support.engines import make_request

COPY = list(range(10, 60))
CHEAP = {1: 1.0, 32: 1.1, 64: 1.2}
DEAR = {1: 1.0, 2: 2.0, 64: 64.0}


def sequence(name: str = "a", prompt: list[int] | None = None, max_tokens: int = 100) -> TokenSequence:
    return TokenSequence(make_request(name, prompt or [*COPY, *COPY[:40]], max_tokens))


def planner(seconds: dict[int, float], allowed: int = MAX_DRAFT, draft: float = 0.0) -> DraftPlanner:
    return DraftPlanner(StepCosts(seconds, draft), lambda _sequence, tokens: tokens[:allowed])


def count(seconds: dict[int, float], of: TokenSequence, others: int = 0, spare: int = 100) -> int:
    """The length of the sequence's draft beside others that have none."""
    beside = [sequence(f"other {n}", list(range(100 * n, 100 * n + 9))) for n in range(1, others + 1)]
    return len(planner(seconds).plan([of, *beside], spare).get(of, ()))


def test_cheap_rows_are_used() -> None:
    draft = planner(CHEAP).plan([sequence()], 100)
    ((tokens),) = draft.values()
    assert list(tokens) == COPY[40 : 40 + len(tokens)]
    assert len(tokens) >= 4


def test_a_step_that_was_disturbed_while_it_was_measured_counts_as_long_as_one_of_more_rows() -> None:
    disturbed = {1: 1.0, 2: 9.0, 4: 1.05, 64: 1.2}
    assert count(disturbed, sequence()) == count({1: 1.0, 2: 1.05, 4: 1.05, 64: 1.2}, sequence()) > 0


def test_rows_that_cost_as_much_as_a_step_are_not() -> None:
    assert count(DEAR, sequence()) == 0


def test_a_draft_grows_with_what_came_and_falls_to_none_with_what_did_not() -> None:
    seconds = {1: 1.0, 32: 2.0}
    lucky, unlucky = sequence(), sequence()
    first = count(seconds, lucky)
    for token in [*COPY[40:], *COPY]:
        lucky.append(token)
    assert count(seconds, lucky) > first
    for number in range(30):
        for token in (1000 + number, *COPY[:4]):
            unlucky.append(token)
            count(seconds, unlucky)
    assert count(seconds, unlucky) < first


def test_many_requests_leave_no_room_where_rows_cost_more_from_some_number_on() -> None:
    step = {1: 1.0, 32: 1.1, 33: 2.0, 64: 2.2}
    assert count(step, sequence()) > 0
    assert count(step, sequence(), others=31) == 0


def test_a_draft_that_costs_more_than_it_gives_is_left_out_beside_others() -> None:
    own, others = sequence(), [sequence(str(n), list(range(100 * n, 100 * n + 9))) for n in range(1, 9)]
    assert planner(CHEAP, draft=0.05).plan([own, *others], 100)
    assert not planner(CHEAP, draft=0.9).plan([own, *others], 100)
    assert planner(CHEAP, draft=0.9).plan([own], 100)


def test_a_draft_ends_with_the_request_and_with_what_the_step_may_compute() -> None:
    assert count(CHEAP, sequence(max_tokens=3)) == 2
    assert count(CHEAP, sequence(max_tokens=1)) == 0
    assert count(CHEAP, sequence(), spare=3) == 3
    assert count(CHEAP, sequence(), spare=0) == 0


def test_more_requests_than_rows_are_known_have_no_drafts() -> None:
    several = [sequence(str(n), [1, 2, 3, 1, 2], 9) for n in range(max(CHEAP) + 1)]
    assert planner(CHEAP).plan(several, 100) == {}


def test_a_grammar_cuts_a_draft() -> None:
    request = make_request("a", [*COPY, *COPY[:40]], 100, grammar=object())
    assert [len(t) for t in planner(CHEAP, allowed=2).plan([TokenSequence(request)], 100).values()] == [2]
    assert planner(CHEAP, allowed=0).plan([TokenSequence(request)], 100) == {}


def scheduler(blocks: int) -> Scheduler:
    limits = SchedulerLimits(kv_blocks=blocks, block_size=16, token_budget=128, max_running=4)
    return Scheduler(limits, drafts=planner({1: 1.0, 64: 1.001}))


def generate(scheduler: Scheduler, *sequences: TokenSequence) -> None:
    """Adds the sequences and computes their prompts and first tokens."""
    for each in sequences:
        scheduler.add(each)
    while any(not each.output_count for each in sequences):
        for progress in scheduler.advance(scheduler.plan()):
            scheduler.confirm(progress)
            if progress.sequence.remaining == 0:
                progress.sequence.append(COPY[40])


def test_a_plan_has_the_draft_behind_the_last_token() -> None:
    own, scheduling = sequence(), scheduler(20)
    generate(scheduling, own)
    (chunk,) = scheduling.plan()
    assert chunk.samples_token
    assert (chunk.start, chunk.count) == (own.length - 1, 1 + len(chunk.draft))
    assert chunk.token_ids == [COPY[40], *chunk.draft]
    assert list(chunk.draft) == COPY[41 : 41 + len(chunk.draft)]


@pytest.mark.parametrize("accepted", [0, 1, 3])
def test_the_next_step_begins_after_the_accepted_tokens(accepted: int) -> None:
    own, scheduling = sequence(), scheduler(20)
    generate(scheduling, own)
    (chunk,) = plan = scheduling.plan()
    (progress,) = scheduling.advance(plan)
    for token in (*chunk.draft[:accepted], 7):
        own.append(token)
    scheduling.accept(progress, accepted, rest_failed=False)
    assert scheduling.counters.accepted_tokens == accepted
    (after,) = scheduling.plan()
    assert after.start == own.length - 1 == chunk.start + 1 + accepted
    scheduling.check_integrity()


def test_a_rejected_draft_leaves_nothing_to_clean() -> None:
    own, scheduling = sequence(), scheduler(20)
    generate(scheduling, own)
    (progress,) = scheduling.advance(scheduling.plan())
    own.append(7)
    scheduling.accept(progress, 0, rest_failed=False)
    scheduling.remove(own)
    assert scheduling.dirty == []


def test_only_accepted_tokens_are_in_the_prefix_cache() -> None:
    own, scheduling = sequence(), scheduler(20)  # a prompt of 5 blocks and 10 tokens
    generate(scheduling, own)
    (chunk,) = plan = scheduling.plan()
    assert chunk.start + chunk.count > 96
    (progress,) = scheduling.advance(plan)
    own.append(7)
    scheduling.accept(progress, 0, rest_failed=False)
    other = sequence("b", [*own.tokens[:91], *chunk.draft, 1, 2, 3])
    assert len(scheduling.pool.lookup(scheduling.prepare(other))) == 5


def test_no_request_is_preempted_for_a_draft() -> None:
    first, second = sequence("a"), sequence("b", list(range(200, 290)))
    scheduling = scheduler(13)
    generate(scheduling, first, second)
    for _ in range(5):  # to the end of the sixth block of each
        plan = scheduling.plan()
        for progress in scheduling.advance(plan):
            progress.sequence.append(9)
            scheduling.accept(progress, 0, rest_failed=False)
    assert scheduling.counters.preemptions == 0


def test_a_draft_that_may_not_be_finite_is_computed_anew_and_its_blocks_are_cleaned() -> None:
    own, scheduling = sequence(), scheduler(20)
    generate(scheduling, own)
    plan = scheduling.plan()
    (progress,) = scheduling.advance(plan)
    own.append(7)
    scheduling.accept(progress, 0, rest_failed=True)
    assert scheduling.counters.preemptions == 1
    assert scheduling.dirty
    (chunk,) = scheduling.plan()
    assert chunk.samples_token
