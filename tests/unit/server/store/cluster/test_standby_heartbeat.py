"""When the standby process beats for a server that shows no sign of life."""

import os
import signal
import subprocess
import sys

import pytest

from server.protocol.ids import new_uuid
from server.store.cluster.standby_heartbeat import (
    HeartbeatSchedule,
    StandbySettings,
    is_stopped,
    make_standby,
)
from tests.support.eventually import eventually

SETTINGS = StandbySettings(url="", replica="", server_pid=1, every=1, silence=2, longest_stall=60)


def beats(standby: HeartbeatSchedule, start: int, end: int) -> list[int]:
    found = []
    for now in range(start, end):
        if standby.is_due(now):
            standby.record_attempt(now)
            found.append(now)
    return found


def test_nobody_is_beaten_for_who_gives_signs_of_life() -> None:
    standby = HeartbeatSchedule(SETTINGS, 0)
    for now in range(20):
        standby.signal_alive(now)
        assert not standby.is_due(now + 0.9)


def test_a_silent_server_is_beaten_for_until_the_silence_is_too_long() -> None:
    standby = HeartbeatSchedule(SETTINGS, 0)
    standby.signal_alive(10)
    assert beats(standby, 10, 100) == list(range(12, 71))
    standby.signal_alive(100)
    assert beats(standby, 100, 104) == [102, 103]


@pytest.mark.parametrize(("now", "pause"), [(0, 2), (1.5, 0.5), (2, 0), (61, 1)])
def test_it_sleeps_until_something_may_be_due(now: float, pause: float) -> None:
    assert HeartbeatSchedule(SETTINGS, 0).next_check(now) == pause


def test_it_sleeps_between_two_heartbeats() -> None:
    standby = HeartbeatSchedule(SETTINGS, 0)
    standby.record_attempt(5)
    assert standby.next_check(5.25) == 0.75


def test_a_process_that_a_signal_has_stopped_is_told_from_one_that_runs() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert not is_stopped(process.pid)
        os.kill(process.pid, signal.SIGSTOP)
        eventually(lambda: is_stopped(process.pid))
        os.kill(process.pid, signal.SIGCONT)
        eventually(lambda: not is_stopped(process.pid))
        process.communicate(b"\n")
    assert not is_stopped(process.pid)


def test_the_process_ends_with_the_pipe_and_ignores_signals_to_the_group() -> None:
    standby = make_standby("postgresql://nobody@127.0.0.1:1/none", new_uuid(), 10)
    standby.start()
    process = standby._process
    assert process is not None
    assert os.getpgid(process.pid) != os.getpgid(0)  # a Ctrl-C during its imports does not reach it
    standby.signal_alive()
    standby.stop()
    assert process.returncode == 0


def test_a_process_that_was_killed_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.store.cluster.standby_heartbeat._RESTART_SECONDS", 0.0)
    standby = make_standby("postgresql://nobody@127.0.0.1:1/none", new_uuid(), 10)
    standby.start()
    try:
        first = standby._process
        assert first is not None
        first.kill()
        first.wait()
        standby.signal_alive()
        assert standby._process is not None
        assert standby._process.pid != first.pid
    finally:
        standby.stop()
