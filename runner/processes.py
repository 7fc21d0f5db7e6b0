"""The processes of one sandbox, seen from outside: which there are, what they use, stopping and going on."""

import contextlib
import os
import signal

_PAGE = os.sysconf("SC_PAGE_SIZE")
_ROUNDS = 20


def process_tree(pid: int) -> list[int]:
    """A process and all below it, the eldest first.

    Those of a sandbox cannot leave it: an orphan becomes its first process's.
    """
    found = [pid]
    for member in found:  # which grows meanwhile
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{member}/task"):
                with contextlib.suppress(OSError), open(f"/proc/{member}/task/{thread}/children") as children:
                    found += [int(child) for child in children.read().split()]
    return found


def memory_of(pids: list[int], limit: int) -> int:
    """Bytes that they hold. What they share is counted once where that matters, for it takes long."""
    held = sum(_resident_memory(pid) for pid in pids)
    return held if held <= limit else sum(_proportional_memory(pid) for pid in pids)


def stop(pid: int) -> None:
    """Stops all below the process, also what is born meanwhile."""
    stopped: set[int] = set()
    for _ in range(_ROUNDS):
        fresh = set(process_tree(pid)[1:]) - stopped
        if not fresh:
            return
        _signal(fresh, signal.SIGSTOP)
        stopped |= fresh


def resume(pid: int) -> None:
    _signal(set(process_tree(pid)[1:]), signal.SIGCONT)


def _signal(pids: set[int], which: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, which)


def _resident_memory(pid: int) -> int:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/statm") as statm:
        return int(statm.read().split()[1]) * _PAGE
    return 0


def _proportional_memory(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup") as told:
            for line in told:
                if line.startswith("Pss:"):
                    return int(line.split()[1]) * 1024
    except FileNotFoundError:
        return 0
    except OSError:
        pass
    return _resident_memory(pid)
