"""The processes of one sandbox, from outside: the process tree, its memory, SIGSTOP and SIGCONT."""

import contextlib
import os
import signal

_PAGE = os.sysconf("SC_PAGE_SIZE")
_ROUNDS = 20


def process_tree(pid: int) -> list[int]:
    """A process and its descendants, oldest first.

    An orphan in a sandbox becomes a child of the sandbox's first process, so none is missed.
    """
    tree = [pid]
    for member in tree:  # which grows meanwhile
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{member}/task"):
                with contextlib.suppress(OSError), open(f"/proc/{member}/task/{thread}/children") as children:
                    tree += [int(child) for child in children.read().split()]
    return tree


def memory_of(pids: list[int], limit: int) -> int:
    """Bytes of memory of these processes. Near the limit shared pages are counted once, which is slow."""
    resident = sum(_resident_memory(pid) for pid in pids)
    return resident if resident <= limit else sum(_proportional_memory(pid) for pid in pids)


def stop(pid: int) -> None:
    """Stops all descendants of the process, including those that are created meanwhile."""
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
        with open(f"/proc/{pid}/smaps_rollup") as rollup:
            for line in rollup:
                if line.startswith("Pss:"):
                    return int(line.split()[1]) * 1024
    except FileNotFoundError:
        return 0
    except OSError:
        pass
    return _resident_memory(pid)
