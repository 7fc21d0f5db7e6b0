"""Named points at which tests let the process die as if by kill -9.

They do nothing unless the setting `crash_at` names one: `name`, or `name:n` for its n-th pass.
"""

import os
import threading
from typing import NoReturn

CRASHPOINTS = frozenset({
    "accept.written", "accept.committed", "accept.begun", "accept.submitted",
    "claim.written", "claim.committed", "claim.rebuilt", "claim.begun", "claim.submitted",
    "recorder.written", "recorder.committed", "recorder.published",
    "end.written", "end.committed", "cancel.marked", "delete.written", "delete.marked",
    "release.written", "release.committed", "orphans.written", "orphans.committed",
    "purge.written", "purge.committed", "detach.written", "detach.committed",
    "drop.written", "drop.committed", "stream.frame",
    "webhook.claim_written", "webhook.claimed", "webhook.sent", "webhook.result_written",
    "webhook.result_committed",
})  # fmt: skip
"""`written` is before a commit, `committed` after it; `stream.frame` is in the middle of a frame."""
KILLED_EXIT = 137
"""The exit status that a shell reports after SIGKILL."""


ARMED: dict[str, int] = {}
"""The point at which the process dies, and the passes left until then. Empty but in tests: code that every
request runs asks this before it passes a point.
"""
_lock = threading.Lock()


def arm(where: str | None) -> None:
    """Lets the process die at that point; None disarms. Raises ValueError for an unknown point."""
    name, _, count = (where or "").partition(":")
    if name and name not in CRASHPOINTS:
        raise ValueError(f"There is no crash point {name!r}; there are {', '.join(sorted(CRASHPOINTS))}.")
    ARMED.clear()
    if name:
        ARMED[name] = int(count or 1)


def crashpoint(name: str) -> None:
    """Dies here if this is the armed point's last pass."""
    if is_last_pass(name):
        die()


def is_last_pass(name: str) -> bool:
    """Counts a pass; True if the caller has to call `die`."""
    if name not in ARMED:
        return False
    with _lock:
        ARMED[name] -= 1
        return ARMED[name] == 0


def die() -> NoReturn:
    """Ends the process without flushing or closing anything."""
    os._exit(KILLED_EXIT)
