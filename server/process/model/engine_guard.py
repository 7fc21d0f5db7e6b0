"""The program between a server and the engine that it has started: neither outlives the other.

Run as `python engine_guard.py COMMAND...`, it starts the command in a process group of its own. When the
command ends, it exits with its code; when its standard input ends, because the server has stopped or was
killed, it ends the group. It imports nothing of the server.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

END_SECONDS = 10.0
"""Seconds between asking the engine to end and killing it."""
_PR_SET_PDEATHSIG = 1


def main(command: list[str]) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    engine = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),  # noqa: PLW1509 - one thread yet
    )
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_input, args=[engine], daemon=True).start()
    code = engine.wait()
    _signal(engine, signal.SIGKILL)  # what it has left behind
    return code if code >= 0 else 128 - code


def _end_with_input(engine: "subprocess.Popen[bytes]") -> None:
    while os.read(0, 1):
        pass
    _signal(engine, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        engine.wait(END_SECONDS)
    _signal(engine, signal.SIGKILL)


def _signal(engine: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(engine.pid, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
