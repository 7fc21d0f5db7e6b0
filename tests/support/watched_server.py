"""`python -m tests.support.watched_server serve …`: a server that prints each stall of its interpreter.

A thread that only wants to run every few milliseconds sees how long no thread of the process could run
Python. What it prints is what `stalls` reads.
"""

import os
import re
import sys
import threading
import time
import traceback
from types import FrameType

TICK_S = 0.005
PRINTED_S = 0.03
_LINE = re.compile(r"^stall of (\d+) ms at (.*)$", re.MULTILINE)


def stalls(said: str) -> list[tuple[int, str]]:
    """The milliseconds of each stall that a server printed, and where its threads were when it ended."""
    return [(int(ms), where) for ms, where in _LINE.findall(said)]


def watch() -> None:
    """Prints stalls for ever."""
    wake = threading.Event()
    while True:
        began, worked = time.perf_counter(), time.process_time()
        wake.wait(TICK_S)
        late = time.perf_counter() - began - TICK_S
        if late >= PRINTED_S:
            # A machine that had no time for this process makes waits long, but not its processor time.
            late = min(late, time.process_time() - worked)
        if late >= PRINTED_S:
            frames = sys._current_frames()
            del frames[threading.get_ident()]
            where = " | ".join(filter(None, map(_place, frames.values())))
            os.write(2, f"stall of {int(late * 1000)} ms at {where}\n".encode())


def _place(frame: FrameType) -> str:
    """The innermost lines of a thread that does not wait."""
    inner = traceback.extract_stack(frame)[-4:]
    if inner[-1].name in (
        "wait",
        "select",
        "poll",
        "_worker",
        "_recv",
        "get",
        "wait_selector",
        "sleep",
        "_wait_until",
    ):
        return ""
    return " < ".join(f"{os.path.basename(one.filename)}:{one.lineno}:{one.name}" for one in reversed(inner))


def main(arguments: list[str]) -> int:
    from server.cli import entry_point

    threading.Thread(target=watch, daemon=True).start()
    return entry_point.main(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
