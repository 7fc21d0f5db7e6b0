"""Named places at which a test can let the process die, as kill -9 would, to see what is left.

Nothing happens at any of them unless the setting `crash_at` names it: `name`, or `name:n` for its n-th time.
"""

import os
import threading

CRASHPOINTS = frozenset(
    {
        "accept.written",
        "accept.committed",
        "accept.begun",
        "accept.submitted",
        "claim.committed",
        "claim.rebuilt",
        "claim.begun",
        "claim.submitted",
        "recorder.written",
        "recorder.committed",
        "recorder.told",
        "cancel.marked",
        "delete.marked",
        "handback.committed",
        "bury.committed",
        "purge.batch",
        "stream.frame",
    }
)
KILLED_EXIT = 137
"""What a shell reports of a process that SIGKILL ended."""


class _Armed:
    """The place at which the process dies, and how often it is passed until then."""

    name: str | None = None
    left = 0
    lock = threading.Lock()


def arm(where: str | None) -> None:
    """Lets the process die at that place; None at none. Raises ValueError for a place that does not exist."""
    name, _, count = (where or "").partition(":")
    if name and name not in CRASHPOINTS:
        raise ValueError(f"There is no crash point {name!r}; there are {', '.join(sorted(CRASHPOINTS))}.")
    _Armed.left = int(count or 1)
    _Armed.name = name or None


def crashpoint(name: str) -> None:
    """The place called `name` is passed."""
    if name != _Armed.name:
        return
    with _Armed.lock:
        _Armed.left -= 1
        if _Armed.left == 0:
            os._exit(KILLED_EXIT)
