"""What /health/ready answers when a thread of the process does not do its work."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from server.http.handlers import health
from server.supervised_thread import SupervisedThread
from tests.support.eventually import eventually


def services(*threads: SupervisedThread, takes_writes: bool = True, age: float = 0.0) -> Any:
    return SimpleNamespace(
        stopping=SimpleNamespace(is_set=lambda: False),
        model=SimpleNamespace(engine=SimpleNamespace(stats=lambda: SimpleNamespace(alive=True))),
        disk=SimpleNamespace(shortage=lambda: None),
        database=SimpleNamespace(retry=lambda *_, **__: takes_writes, disk_is_full=False),
        recorder=SimpleNamespace(trouble=lambda: None),
        claimer=SimpleNamespace(trouble=lambda: None),
        heartbeat=SimpleNamespace(age=age),
        config=SimpleNamespace(lease_seconds=10.0),
        threads=threads,
    )


def test_a_server_is_ready_while_its_threads_work() -> None:
    thread = SupervisedThread("taker", lambda: waits(thread))
    thread.start()
    assert health.unready_reason(services(thread)) is None
    thread.stop()


def waits(thread: SupervisedThread) -> None:
    thread.wait()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_has_died_is_named() -> None:
    def turn() -> None:
        raise SystemExit

    thread = SupervisedThread("taker", turn)
    thread.start()
    assert eventually(lambda: health.unready_reason(services(thread))) == "the taker thread has died"


def test_a_thread_whose_turn_does_not_end_is_named() -> None:
    now, begun, ends = [0.0], threading.Event(), threading.Event()

    def turn() -> None:
        begun.set()
        ends.wait(10)

    thread = SupervisedThread("keeper", turn, clock=lambda: now[0])
    thread.start()
    assert begun.wait(10)
    now[0] = 61.0
    assert health.unready_reason(services(thread)) == "the keeper thread has been at one turn for 61 s"
    ends.set()
    thread.stop()


def test_a_server_whose_database_takes_no_writes_is_not_ready() -> None:
    reason = health.unready_reason(services(takes_writes=False))
    assert reason == "the database takes no writes: its sessions are read-only"


def test_a_server_that_wrote_no_heartbeat_for_a_lease_is_not_ready() -> None:
    assert health.unready_reason(services(age=9.0)) is None
    assert health.unready_reason(services(age=10.4)) == "this replica's heartbeat was last written 10 s ago"
