"""What a supervised thread does about exceptions, what it says of itself, and what counts as a stall."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from server.supervised_thread import TICK_SECONDS, Retry, Stalls, StallWatch, SupervisedThread
from tests.support.eventually import eventually

AT_ONCE = Retry(max_pause=0.0)


@contextmanager
def running(thread: SupervisedThread) -> Iterator[SupervisedThread]:
    thread.start()
    try:
        yield thread
    finally:
        thread.stop()


def test_a_turn_that_raises_is_logged_counted_and_repeated(caplog: pytest.LogCaptureFixture) -> None:
    turns: list[int] = []
    done = threading.Event()

    def turn() -> None:
        turns.append(len(turns))
        if len(turns) < 3:
            raise ValueError("a row of a later release")
        done.set()
        thread.wait()

    thread = SupervisedThread("worker", turn, retry=AT_ONCE)
    with running(thread):
        assert done.wait(10)
        assert thread.trouble() is None
        assert thread.failures == 2
    assert thread.consecutive_failures == 0
    logged = [record for record in caplog.records if record.exc_info is not None]
    assert len(logged) == 2
    assert "worker" in caplog.text
    assert "a row of a later release" in caplog.text


def test_a_turn_that_fails_too_often_in_a_row_is_fatal() -> None:
    ended = threading.Event()
    turns: list[None] = []

    def turn() -> None:
        turns.append(None)
        raise ValueError

    thread = SupervisedThread("worker", turn, retry=Retry(3, 0.0), on_fatal=ended.set)
    with running(thread):
        assert ended.wait(10)
        assert eventually(thread.trouble) == "the worker thread has died"
    assert len(turns) == 4


def test_a_fatal_exception_ends_the_thread_at_once() -> None:
    fatal: list[None] = []
    ended = threading.Event()

    def turn() -> None:
        raise KeyError

    thread = SupervisedThread(
        "worker", turn, fatal=(KeyError,), on_fatal=lambda: fatal.append(None), on_end=ended.set
    )
    with running(thread):
        assert ended.wait(10)
    assert fatal == [None]
    assert thread.failures == 0


def test_a_stopped_thread_is_not_fatal_and_has_no_trouble() -> None:
    fatal: list[None] = []
    turns: list[None] = []
    thread = SupervisedThread("worker", lambda: turns.append(None), on_fatal=lambda: fatal.append(None))
    with running(thread):
        eventually(lambda: len(turns) > 3)
    thread.stop()
    assert fatal == []
    assert thread.trouble() is None


def test_a_wait_ends_when_the_thread_is_woken_and_when_it_is_stopped() -> None:
    woken = threading.Semaphore(0)

    def turn() -> None:
        thread.wait()
        woken.release()

    thread = SupervisedThread("worker", turn)
    with running(thread):
        thread.wake()
        assert woken.acquire(timeout=60)
        assert not woken.acquire(blocking=False)
        thread.wake()
        assert woken.acquire(timeout=60)
    assert woken.acquire(timeout=60)


def test_a_thread_can_stop_itself_within_a_turn() -> None:
    thread = SupervisedThread("worker", lambda: thread.stop())  # noqa: PLW0108 - not made yet
    thread.start()
    thread.join()
    assert thread.stopping


def test_a_turn_that_lasts_longer_than_its_bound_is_a_trouble_that_names_the_thread() -> None:
    now, begun, ends = [100.0], threading.Semaphore(0), threading.Semaphore(0)

    def turn() -> None:
        begun.release()
        ends.acquire(timeout=60)

    thread = SupervisedThread("worker", turn, max_turn=60, clock=lambda: now[0])
    with running(thread):
        assert begun.acquire(timeout=60)
        now[0] = 160
        assert thread.trouble() is None
        now[0] = 173
        assert thread.trouble() == "the worker thread has been at one turn for 73 s"
        ends.release()
        assert begun.acquire(timeout=60)
        now[0] = 174
        assert thread.trouble() is None
        thread.request_stop()
        ends.release()


def test_a_thread_that_waits_for_work_has_no_trouble_however_long_it_waits() -> None:
    now = [0.0]

    def turn() -> None:
        thread.wait()

    thread = SupervisedThread("worker", turn, clock=lambda: now[0])
    with running(thread):
        now[0] = 1e6
        eventually(lambda: thread.trouble() is None)


def test_a_thread_that_fails_again_and_again_is_a_trouble_until_it_makes_progress() -> None:
    failing = threading.Semaphore(0)
    healed = threading.Event()

    def turn() -> None:
        if healed.is_set():
            thread.progress()
            thread.wait()
            return
        failing.release()
        raise ValueError

    thread = SupervisedThread("worker", turn, retry=Retry(10_000, 0.001))
    with running(thread):
        for _ in range(6):
            assert failing.acquire(timeout=60)
        assert "times in a row" in (thread.trouble() or "")
        healed.set()
        eventually(lambda: thread.trouble() is None)
        assert thread.failures >= 6


def test_failures_of_a_thread_that_is_repeated_for_ever_are_no_trouble() -> None:
    now, blocked, ends = [0.0], threading.Event(), threading.Event()

    def turn() -> None:
        if thread.failures < 7:
            raise ValueError
        blocked.set()
        ends.wait(10)

    thread = SupervisedThread("janitor", turn, retry=Retry(None, 0.001), clock=lambda: now[0])
    with running(thread):
        assert blocked.wait(10)
        assert thread.trouble() is None
        now[0] = 61
        assert thread.trouble() is not None
        ends.set()


def test_pauses_double_up_to_a_bound_and_end_after_so_many_failures() -> None:
    retry = Retry(max_failures=12, max_pause=5)
    pauses = [retry.pause(failures) for failures in range(1, 14)]
    assert pauses[:6] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2])
    assert pauses[6:] == [5, 5, 5, 5, 5, 5, None]
    assert Retry(max_failures=None).pause(10_000) == 30


def test_wake_ups_that_come_late_are_counted_and_long_ones_logged(caplog: pytest.LogCaptureFixture) -> None:
    watch = StallWatch()
    for seconds in (TICK_SECONDS, TICK_SECONDS + 0.05):
        watch.add_wait(seconds)
    assert watch.stalls == Stalls()
    watch.add_wait(TICK_SECONDS + 0.25)
    assert caplog.records == []
    watch.add_wait(TICK_SECONDS + 4.5)
    assert watch.stalls.count == 2
    assert watch.stalls.longest_seconds == pytest.approx(4.5)
    assert watch.stalls.total_seconds == pytest.approx(4.75)
    assert "the interpreter stood still for 4.5 s" in caplog.text
