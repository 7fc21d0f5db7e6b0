"""When the standby process beats for a server that shows no sign of life."""

import os
import signal
import subprocess
import sys

from server.protocol.ids import new_uuid
from server.store.cluster.standby_heartbeat import (
    StandbyHeartbeat,
    StandbySettings,
    is_stopped,
    make_standby,
)
from tests.support.eventually import eventually


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
    process = standby.process
    assert process is not None
    assert os.getpgid(process.pid) != os.getpgid(0)  # a Ctrl-C during its imports does not reach it
    standby.signal_alive()
    standby.stop()
    assert process.returncode == 0


def test_a_process_that_was_killed_is_started_again() -> None:
    url = "postgresql://nobody@127.0.0.1:1/none"
    settings = StandbySettings(url, str(new_uuid()), os.getpid(), every=3, silence=2, longest_stall=60)
    standby = StandbyHeartbeat(settings, restart_seconds=0.0)
    standby.start()
    try:
        first = standby.process
        assert first is not None
        first.kill()
        first.wait()
        standby.signal_alive()
        assert standby.process is not None
        assert standby.process.pid != first.pid
    finally:
        standby.stop()


def test_a_server_that_is_silent_for_too_long_is_not_beaten_for_any_more() -> None:
    url = "postgresql://nobody@127.0.0.1:1/none"
    silent = StandbyHeartbeat(
        StandbySettings(url, str(new_uuid()), os.getpid(), every=0.01, silence=0.01, longest_stall=0.1)
    )
    silent.start()
    assert silent.process is not None
    assert silent.process.wait(30) == 0
    silent.stop()
