"""The status values of a response and the allowed transitions between them.

    queued ──▶ in_progress ──▶ completed
       │            ├────────▶ incomplete   (the token limit was reached)
       │            ├────────▶ failed       (engine error, or the replica died)
       ├────────────┴────────▶ cancelled
       └─────────────────────▶ failed

Pure: knows neither database nor clock.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from server.protocol.responses.response import Status, TurnUsage

EndStatus = Literal["completed", "failed", "incomplete", "cancelled"]

TRANSITIONS: dict[Status, frozenset[Status]] = {
    "queued": frozenset({"in_progress", "cancelled", "failed"}),
    "in_progress": frozenset({"completed", "incomplete", "failed", "cancelled"}),
    "completed": frozenset(),
    "incomplete": frozenset(),
    "failed": frozenset(),
    "cancelled": frozenset(),
}

TERMINAL_STATUSES = frozenset(status for status, ways in TRANSITIONS.items() if not ways)


def is_transition(old: Status, new: Status) -> bool:
    return new in TRANSITIONS[old]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The end of a response: the columns of its row that are set then."""

    status: EndStatus
    first_token_at: datetime | None
    finished_at: datetime
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    turns: Sequence[TurnUsage] = ()
    """Token counts of each model turn."""
    error_code: str | None = None
    error_message: str | None = None
    incomplete_reason: str | None = None


def columns_of(ending: Ending) -> dict[str, Any]:
    """The column values of a response's row at its end, with `turns` as JSON."""
    columns = {name: getattr(ending, name) for name in Ending.__dataclass_fields__}
    return {**columns, "turns": json.dumps([turn._asdict() for turn in ending.turns])}


def read_turns(column: str | None) -> Sequence[TurnUsage]:
    """The turns in that column; empty for rows written before the column existed."""
    return [TurnUsage(**turn) for turn in json.loads(column or "[]")]
