from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import Limits
from engine.messages import FinishReason
from engine.scheduler import CALM_STEPS, Plan, Scheduler
from engine.sequence import TokenSequence
from tests.support.engines import make_job, make_prompt


@dataclass
class Play:
    """A scheduler whose steps are computed by nobody: each token is its own position."""

    limits: Limits
    scheduler: Scheduler = field(init=False)
    arrivals: int = 0
    ended: dict[str, FinishReason] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(self.limits)

    def add(self, prompt: int, output: int, salt: int = 0) -> TokenSequence:
        self.arrivals += 1
        job = make_job(str(self.arrivals), make_prompt(prompt, salt), output)
        sequence = TokenSequence(job, self.arrivals)
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> Plan:
        plan = self.scheduler.plan()
        self.scheduler.advance(plan)
        drawing = [chunk.sequence for chunk in plan if chunk.draws]
        for chunk in plan:
            assert chunk.sequence.computed == chunk.start + chunk.count
        for sequence in drawing:
            if reason := sequence.append(len(sequence.tokens)):
                self.end(sequence, reason)
        self.scheduler.check_integrity()
        return plan

    def end(self, sequence: TokenSequence, reason: FinishReason) -> None:
        assert sequence.job.job_id not in self.ended, "a job ended twice"
        self.ended[sequence.job.job_id] = reason
        self.scheduler.remove(sequence)


def limits(**settings: int) -> Limits:
    return Limits(**{"kv_blocks": 64, "block_size": 4, "token_budget": 32, "max_running": 8, **settings})


def test_a_long_prompt_is_computed_in_chunks_beside_a_job_that_generates() -> None:
    play = Play(limits())
    short = play.add(3, 20)
    play.step()
    long = play.add(70, 1, salt=1)
    counts = []
    while long.job.job_id not in play.ended:
        counts.append({chunk.sequence: chunk.count for chunk in play.step()})
    assert [step[long] for step in counts] == [31, 31, 8]
    assert [step[short] for step in counts] == [1, 1, 1]


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
    assert young.tokens == [*young.job.prompt, *range(4, 20)]


def test_a_job_waits_when_it_would_soon_be_preempted() -> None:
    play = Play(limits(kv_blocks=3))
    play.add(4, 8)
    play.add(5, 3, salt=1)
    play.step()
    assert play.scheduler.running == 1


def test_jobs_start_in_the_order_of_their_acceptance() -> None:
    play = Play(limits(max_running=2, token_budget=8))
    sequences = [play.add(6, 3, salt) for salt in range(6)]
    first_seen: list[TokenSequence] = []
    while not play.scheduler.idle:
        first_seen += [c.sequence for c in play.step() if c.sequence not in first_seen]
    assert first_seen == sequences


def test_the_prompt_of_a_running_job_is_reused() -> None:
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


def test_the_budget_shrinks_to_one_token_a_job_and_recovers() -> None:
    play = Play(limits())
    assert [play.scheduler.shrink() for _ in range(3)] == [True, True, False]
    sequence = play.add(20, CALM_STEPS * 2)
    assert [play.step()[0].count for _ in range(3)] == [8, 8, 4]
    for _ in range(CALM_STEPS):
        play.step()
    play.end(sequence, "cancelled")
    play.add(20, 1, salt=1)
    assert play.step()[0].count == 16


@pytest.mark.parametrize("state", ["waiting", "prefilling", "generating", "preempted"])
def test_a_cancelled_job_gives_all_its_blocks_back(state: str) -> None:
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


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_every_job_ends_once_and_no_block_is_lost_whatever_comes(data: st.DataObject) -> None:
    blocks = data.draw(st.integers(4, 20), label="blocks")
    running = data.draw(st.integers(1, 6), label="running")
    play = Play(
        limits(
            kv_blocks=blocks,
            max_running=running,
            token_budget=data.draw(st.integers(running, 24), label="budget"),
        )
    )
    live: list[TokenSequence] = []
    for _ in range(data.draw(st.integers(1, 30), label="length")):
        match data.draw(st.sampled_from(["add", "add", "step", "step", "cancel", "shrink"])):
            case "add":
                prompt = data.draw(st.integers(1, blocks * 4 - 1))
                output = data.draw(st.integers(1, min(12, blocks * 4 - prompt)))
                live.append(play.add(prompt, output, data.draw(st.integers(0, 2))))
            case "step" if not play.scheduler.idle:
                check_step(play)
            case "cancel" if live:
                sequence = live.pop(data.draw(st.integers(0, len(live) - 1)))
                if sequence.job.job_id not in play.ended:
                    play.end(sequence, "cancelled")
            case "shrink":
                play.scheduler.shrink()
    steps = 0
    while not play.scheduler.idle:
        check_step(play)
        steps += 1
        assert steps < 5000, "a job starves"
    assert len(play.ended) == play.arrivals
    assert play.scheduler.pool.free == blocks


def check_step(play: Play) -> None:
    """Steps, and checks what must hold of any plan."""
    oldest = min(play.scheduler.sequences(), key=lambda sequence: sequence.arrival)
    plan = play.step()
    chunks = {chunk.sequence for chunk in plan}
    assert oldest in chunks, "the oldest job must always move"
    assert len(chunks) == len(plan) <= play.limits.max_running
    assert sum(chunk.count for chunk in plan) <= play.limits.token_budget
    assert all(chunk.count >= 1 for chunk in plan)
