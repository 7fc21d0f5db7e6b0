"""The states of a response and the ways between them, as docs/architecture.md draws them.

Every change of a status that a test sees is held against this table.
"""

from server.protocol.responses.response import TERMINAL_STATUSES as TERMINAL_STATUSES
from server.protocol.responses.response import Status

TRANSITIONS: dict[Status, frozenset[Status]] = {
    "queued": frozenset({"in_progress", "cancelled", "failed"}),
    "in_progress": frozenset({"completed", "incomplete", "failed", "cancelled"}),
    "completed": frozenset(),
    "incomplete": frozenset(),
    "failed": frozenset(),
    "cancelled": frozenset(),
}


def is_transition(old: Status, new: Status) -> bool:
    return new in TRANSITIONS[old]
