"""What is retained of commits, for how long, and when the next one has to reach the disk."""

from uuid import uuid4

from engine.request import TokenUsage
from server.generation.run import Run
from server.recording.recent_commits import RETAIN_SECONDS, RecentCommits
from server.recording.recorder_messages import RunUpdate
from server.store.commit_probe import Probe
from tests.support.builders import LATER, TENANT, make_echo, make_run, say


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def new(*, store: bool = True) -> Run:
    run = make_run(id=uuid4(), echo=make_echo(store=store))
    run.start()
    return run


def spoken(run: Run, text: str) -> RunUpdate:
    update = RunUpdate(run)
    update.events += run.tokens(say(text), LATER, None)
    update.token_ids += say(text)
    return update


def ended(run: Run) -> RunUpdate:
    update = RunUpdate(run)
    update.events += run.finish("stop", TokenUsage(1, 0, 1), LATER)
    return update


def numbers(update: RunUpdate) -> list[int]:
    return [number for row in update.earlier_rows for number in range(row.first_seq, row.first_seq + row.n)]


def test_what_is_taken_writes_all_retained_events_of_a_response_again_and_ends_it() -> None:
    recent = RecentCommits(Clock())
    run, other = new(), new()
    begin = run.next_seq
    recent.committed([spoken(run, "a"), spoken(other, "b")], synchronous=False)
    recent.committed([spoken(run, "c")], synchronous=False)
    recent.committed([ended(run)], synchronous=True)
    assert recent.is_over(run.facts.id)
    taken = recent.take({run.facts.id})
    assert numbers(taken[run.facts.id]) == list(range(begin, run.next_seq))
    assert taken[run.facts.id].is_last
    assert taken[run.facts.id].first_seq == run.next_seq
    assert not recent.is_over(run.facts.id)
    assert recent.take({run.facts.id}) == {}
    assert set(recent.take({other.facts.id})) == {other.facts.id}


def test_of_a_response_that_is_not_stored_only_the_end_is_retained() -> None:
    recent = RecentCommits(Clock())
    run = new(store=False)
    recent.committed([spoken(run, "a")], synchronous=False)
    assert recent.take({run.facts.id}) == {}
    recent.committed([ended(run)], synchronous=True)
    assert numbers(recent.take({run.facts.id})[run.facts.id]) == []


def test_a_commit_is_dropped_when_it_is_old_and_a_later_one_has_reached_the_disk() -> None:
    clock, run = Clock(), new()
    recent = RecentCommits(clock)
    recent.committed([spoken(run, "a")], synchronous=False)
    clock.seconds += RETAIN_SECONDS + 1
    due = [recent.flush_due]
    for word, synchronous in (("b", False), ("c", True)):
        recent.committed([spoken(run, word)], synchronous=synchronous)
        due.append(recent.flush_due)
    assert due == [True, True, False]
    clock.seconds += 1
    recent.committed([spoken(run, "d")], synchronous=False)
    assert len(recent.take({run.facts.id})[run.facts.id].earlier_rows) == 3


def test_commits_that_wait_for_the_disk_are_retained_for_a_failover() -> None:
    clock, run = Clock(), new()
    recent = RecentCommits(clock)
    recent.committed([ended(run)], synchronous=True)
    clock.seconds += RETAIN_SECONDS - 1
    recent.committed([], synchronous=True)
    before = recent.is_over(run.facts.id)
    clock.seconds += 2
    recent.committed([], synchronous=True)
    assert (before, recent.is_over(run.facts.id)) == (True, False)


def test_memory_is_bounded() -> None:
    recent, run = RecentCommits(Clock(), max_bytes=2000), new()
    for _ in range(100):
        recent.committed([spoken(run, "a")], synchronous=False)
    assert 1 <= len(recent.take({run.facts.id})[run.facts.id].earlier_rows) < 10


def test_the_probe_is_a_row_of_the_last_commit_that_has_one() -> None:
    recent, run, other = RecentCommits(Clock()), new(), new()
    first = spoken(run, "a")
    recent.committed([first], synchronous=True)
    recent.committed([], synchronous=True)
    assert recent.probe == Probe(TENANT, run.facts.id, first.events[-1].sequence_number)
    recent.committed([spoken(run, "b"), ended(other)], synchronous=True)
    assert recent.probe == Probe(TENANT, other.facts.id, None)
