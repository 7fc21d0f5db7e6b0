import threading
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

import pytest

from server.store.database import OutageContinues, SharedOutage
from tests.support.eventually import eventually

LONG = 60.0


def test_everybody_may_try_while_there_is_no_outage() -> None:
    outage = SharedOutage()
    with outage.attempt(monotonic()), outage.attempt(monotonic()):
        pass


def test_nobody_tries_while_another_does_in_an_outage() -> None:
    outage = SharedOutage()
    outage.report_failure(monotonic())
    with outage.attempt(monotonic()), pytest.raises(OutageContinues), outage.attempt(monotonic()):
        pass


def test_the_next_one_tries_when_a_try_has_failed() -> None:
    outage = SharedOutage()
    outage.report_failure(monotonic())
    with pytest.raises(ZeroDivisionError), outage.attempt(monotonic()):
        raise ZeroDivisionError
    with outage.attempt(monotonic()):
        pass


def test_who_waits_goes_on_when_the_database_is_back() -> None:
    outage = SharedOutage()
    outage.report_failure(monotonic())
    went_on = threading.Semaphore(0)

    def wait() -> None:
        with outage.attempt(monotonic() + LONG):
            went_on.release()

    with ThreadPoolExecutor(3) as pool:
        with outage.attempt(monotonic()):
            waiters = [pool.submit(wait) for _ in range(3)]
            outage.report_success()
            for _ in waiters:
                assert went_on.acquire(timeout=LONG)
        for waiter in waiters:
            waiter.result()


def test_an_outage_is_waited_for_from_its_beginning_on() -> None:
    outage = SharedOutage()
    outage.report_failure(100.0)
    outage.report_failure(200.0)
    assert outage.deadline(5.0) == 105.0
    outage.report_success()
    assert outage.deadline(5.0) > 105.0


def test_one_that_waits_for_its_turn_gets_it_after_a_failed_try() -> None:
    outage = SharedOutage()
    outage.report_failure(monotonic())
    turns: list[int] = []

    def wait() -> None:
        with outage.attempt(monotonic() + LONG):
            turns.append(1)

    waiter = threading.Thread(target=wait)
    with outage.attempt(monotonic()):
        waiter.start()
        assert turns == []
    eventually(lambda: turns == [1])
    waiter.join()
