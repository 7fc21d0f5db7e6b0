"""Named places at which a test can let the process die, as kill -9 would, to see what is left.

Nothing happens at any of them unless the setting `crash_at` names it: `name`, or `name:n` for its n-th time.
"""

import os
import threading
from typing import NoReturn

CRASHPOINTS = frozenset(
    {
        "accept.written",
        "accept.committed",
        "accept.begun",
        "accept.submitted",
        "claim.written",
        "claim.committed",
        "claim.rebuilt",
        "claim.begun",
        "claim.submitted",
        "recorder.written",
        "recorder.committed",
        "recorder.told",
        "end.written",
        "end.committed",
        "cancel.marked",
        "delete.written",
        "delete.marked",
        "handback.written",
        "handback.committed",
        "bury.written",
        "bury.committed",
        "purge.written",
        "purge.committed",
        "stream.frame",
    }
)
"""`written` is before a commit and `committed` after it; `stream.frame` is in the middle of a frame."""
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
    if is_last_pass(name):
        die()


def is_last_pass(name: str) -> bool:
    """Counts a pass; whether it is the one of which the process is to die, by `die`."""
    if name != _Armed.name:
        return False
    with _Armed.lock:
        _Armed.left -= 1
        return _Armed.left == 0


def die() -> NoReturn:
    """As kill -9 would: nothing is flushed, closed or said."""
    os._exit(KILLED_EXIT)
