"""A page of a response's events as JSON for the replay: number, type, time, item, attempt, contents. Pure."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from server.protocol.decode import decode_as
from server.protocol.responses.events import Event, Kind, event_type
from server.store.log_read import LogRow, decode_row

MAX_EVENTS: Final = 5000
MAX_BYTES: Final = 1_000_000
"""Of the contents on a page; one event more may begin below it."""
MAX_PAYLOAD_BYTES: Final = 200_000
"""Of one event; the replay says of a longer one how long it is."""


class _Place(msgspec.Struct):
    """Where an event that is stored as JSON belongs."""

    output_index: int | None = None


def event_page(
    rows: Sequence[LogRow],
    first: int,
    limit: int,
    *,
    created_at: datetime,
    contents: bool,
) -> list[dict[str, Any]]:
    """At most `limit` events from sequence number `first` on, fewer if they exceed `MAX_BYTES`.

    `ms` counts from `created_at`. Without contents there is neither `delta` nor `payload`.
    """
    page: list[dict[str, Any]] = []
    size = 0
    for row, event in _events(rows, first):
        if len(page) >= limit or size >= MAX_BYTES:
            break
        page.append(_described(row, event, created_at, contents=contents))
        size += min(len(event.body), MAX_PAYLOAD_BYTES)
    return page


def _events(rows: Sequence[LogRow], first: int) -> Iterator[tuple[LogRow, Event]]:
    for row in rows:
        for event in decode_row(
            row.first_seq, row.kind, row.output_index, row.content_index, bytes(row.body)
        ):
            if event.sequence_number >= first:
                yield row, event


def _described(row: LogRow, event: Event, created_at: datetime, *, contents: bool) -> dict[str, Any]:
    described: dict[str, Any] = {
        "sequence_number": event.sequence_number,
        "type": event_type(event),
        "ms": round(1000 * (row.at - created_at.timestamp()), 1),
        "attempt": row.attempt,
    }
    is_whole = event.kind is Kind.WHOLE
    place = output_index(event) if is_whole else event.output_index
    if place is not None:
        described["output_index"] = place
    if not contents:
        return described
    if not is_whole:
        described |= {"content_index": event.content_index, "delta": delta_text(event)}
    elif len(event.body) > MAX_PAYLOAD_BYTES:
        described["bytes"] = len(event.body.encode())
    else:
        described["payload"] = msgspec.Raw(event.body.encode())
    return described


def output_index(event: Event) -> int | None:
    """The item of an event that is stored as JSON; None if it belongs to none."""
    return decode_as(event.body, _Place).output_index


def delta_text(event: Event) -> str:
    """The text of a delta."""
    if event.kind is Kind.OUTPUT_TEXT_DELTA_WITH_LOGPROBS:
        return str(msgspec.json.decode(event.body)[0])
    return event.body
