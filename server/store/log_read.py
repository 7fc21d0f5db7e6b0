"""Reads the event log: a response's events, hot or folded, its tokens, and updates for followers."""

import logging
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby, islice
from typing import Any, Final, Literal, NamedTuple
from uuid import UUID

import msgspec
from sqlalchemy import Connection, text

from server.logs.context import response_fields
from server.protocol.decode import decode_as
from server.protocol.responses.events import Event, Kind
from server.store import arrays

log = logging.getLogger("holdfast.events")


class LoggedEvent(NamedTuple):
    """An event of the log, and the attempt that wrote it."""

    event: Event
    attempt: int


def decode_row(first_seq: int, kind: int, output_index: int, content_index: int, body: bytes) -> list[Event]:
    if kind == Kind.WHOLE:
        return [Event(first_seq, Kind.WHOLE, 0, 0, body.decode())]
    deltas = decode_as(body, list[str])
    return [
        Event(first_seq + offset, Kind(kind), output_index, content_index, delta)
        for offset, delta in enumerate(deltas)
    ]


class LogRow(NamedTuple):
    """One row of the log; a folded stream is a JSON array of such rows."""

    first_seq: int
    n: int
    kind: int
    output_index: int
    content_index: int
    at: float
    body: msgspec.Raw
    attempt: int

    def events(self) -> list[Event]:
        return decode_row(self.first_seq, self.kind, self.output_index, self.content_index, bytes(self.body))


def parse_folded(body: str | bytes) -> list[LogRow]:
    """The rows of a folded stream. Raises msgspec.DecodeError."""
    return decode_as(body, list[LogRow])


LOG_COLUMNS: Final = ", ".join(LogRow._fields)
_WIDTH: Final = len(LogRow._fields)


def hot_row(columns: Sequence[Any]) -> LogRow:
    *place, body, attempt = columns
    return LogRow._make((*place, msgspec.Raw(body.encode()), attempt))


def _events_of(rows: Iterable[LogRow], first: int) -> Iterator[LoggedEvent]:
    for row in rows:
        for event in row.events():
            if event.sequence_number >= first:
                yield LoggedEvent(event, row.attempt)


_HOT = text(f"""
    select {LOG_COLUMNS} from response_events_hot
    where tenant = :tenant and response_id = :id and first_seq + n > :first order by first_seq limit :limit
""")
FOLDED_ROWS: Final = f"""
    '[' || string_agg('[' || concat_ws(',', {LOG_COLUMNS}) || ']', ',' order by first_seq) || ']'
"""
"""SQL that aggregates rows of `response_events_hot` into the JSON of a folded stream of codec 2."""
STREAM_BODY: Final = "case s.codec when 3 then holdfast_with_echo(s.body, r.request) else s.body end"
"""SQL of a folded stream's rows as JSON: of `response_streams s` left joined to its `responses r`."""
_FOLDED = f"""
    select {STREAM_BODY} from response_streams s
    left join responses r on r.tenant = s.tenant and r.id = s.response_id
    where s.tenant = :tenant and s.response_id = :id
"""
_ENDED = f"""
    select coalesce(({_FOLDED}), (
        select {FOLDED_ROWS} from response_events_hot where tenant = :tenant and response_id = :id))
"""
_TOKENS = text("""
    select token_ids, first_seq, first_seq + n, to_timestamp(at) from response_events_hot
    where tenant = :tenant and response_id = :id order by first_seq
""")


def hot_rows(
    connection: Connection, tenant: str, response_id: UUID, first: int, limit: int | None = None
) -> list[LogRow]:
    """The rows of a log that is not folded, from the one with sequence number `first` on, at most `limit`."""
    parameters = {"tenant": tenant, "id": response_id, "first": first, "limit": limit}
    return [hot_row(row) for row in connection.execute(_HOT, parameters)]


def read(
    connection: Connection, tenant: str, response_id: UUID, first: int, limit: int | None = None
) -> list[Event]:
    """The committed events from sequence number `first` on, at most `limit`."""
    return [logged.event for logged in read_logged(connection, tenant, response_id, first, limit)]


def read_logged(
    connection: Connection, tenant: str, response_id: UUID, first: int, limit: int | None = None
) -> list[LoggedEvent]:
    """`read` with the attempts that wrote the events.

    Hot rows are read first. Folding moves them in one transaction, so a reader that finds none finds the
    folded stream.
    """
    rows = hot_rows(connection, tenant, response_id, first, limit)
    if rows:
        return list(islice(_events_of(rows, first), limit))
    folded = FoldedStream(_read_stream(connection, _FOLDED, tenant, response_id))
    return list(islice(folded.read(first), limit))


def read_ended(connection: Connection, tenant: str, response_id: UUID) -> str:
    """An ended response's stream, for `FoldedStream`, whether its rows are folded or not."""
    return _read_stream(connection, _ENDED, tenant, response_id)


def _read_stream(connection: Connection, query: str, tenant: str, response_id: UUID) -> str:
    packed: str | None = connection.execute(text(query), {"tenant": tenant, "id": response_id}).scalar()
    return packed or "[]"


class LogProgress(NamedTuple):
    """The logged tokens and the next sequence number of a running response."""

    token_chunks: list[tuple[int, list[int]]]
    """Tokens that were committed together, after the sequence number of their first event."""
    next_seq: int
    first_token_at: datetime | None
    has_gap: bool = False

    @property
    def token_ids(self) -> list[int]:
        return [token for _, piece in self.token_chunks for token in piece]


def read_progress(connection: Connection, tenant: str, response_id: UUID) -> LogProgress:
    """The tokens of a running response in the log, and its next sequence number."""
    pieces: list[tuple[int, list[int]]] = []
    next_seq = 0
    first_token_at = None
    has_gap = False
    for stored, first, end, at in connection.execute(_TOKENS, {"tenant": tenant, "id": response_id}):
        if stored is not None:
            pieces.append((first, array("i", stored).tolist()))
            first_token_at = first_token_at or at
        has_gap |= first != next_seq
        next_seq = end
    return LogProgress(pieces, next_seq, first_token_at, has_gap)


class FoldedStream:
    """The rows of a folded stream. They are decoded when they are read, since that takes more memory."""

    def __init__(self, packed: str) -> None:
        """Raises msgspec.DecodeError."""
        self._rows = decode_as(packed, list[msgspec.Raw])
        self.end = _end_of(self._rows[-1]) if self._rows else 0
        """The sequence number after the last event."""

    def rows(self, first: int) -> Iterator[LogRow]:
        start = bisect_right(self._rows, first, key=_end_of)
        return (decode_as(row, LogRow) for row in self._rows[start:])

    def read(self, first: int) -> Iterator[LoggedEvent]:
        return _events_of(self.rows(first), first)


def _end_of(packed: msgspec.Raw) -> int:
    row = decode_as(packed, LogRow)
    return row.first_seq + row.n


@dataclass(frozen=True, slots=True)
class Subscription:
    """A followed response and its next sequence number; None if that is not known."""

    tenant: str
    response_id: UUID
    next_seq: int | None


@dataclass(frozen=True, slots=True)
class SubscriptionUpdate:
    """New events, or the new state, of a followed response."""

    subscription: Subscription
    state: Literal["running", "ended", "gone", "unreadable"]
    end: int
    """The sequence number after the last event of a running response."""
    events: list[LoggedEvent]
    """Events of a running response from `next_seq` on, with the one before them, by which a fork is noticed;
    none if there are none from `next_seq` on or that is not known."""


_READ_UPDATES = text(f"""
    select w.place, r.status,
           case when w.next_seq is null then (
               select first_seq + n from response_events_hot e
               where e.tenant = w.tenant and e.response_id = w.response_id
               order by first_seq desc limit 1) end,
           p.*, h.*
    from {arrays.unnest("w", Subscription, place=True)}
    left join responses r on r.tenant = w.tenant and r.id = w.response_id and r.deleted_at is null
    left join lateral (
        select {LOG_COLUMNS} from response_events_hot e
        where e.tenant = w.tenant and e.response_id = w.response_id and e.first_seq >= w.next_seq
          and r.status in ('queued', 'in_progress')
    ) h on true
    left join lateral (
        select {LOG_COLUMNS} from response_events_hot e
        where h.first_seq = w.next_seq
          and e.tenant = w.tenant and e.response_id = w.response_id and e.first_seq < w.next_seq
        order by e.first_seq desc limit 1
    ) p on true
    where h.first_seq is not null or w.next_seq is null or r.status is null
       or r.status not in ('queued', 'in_progress')
    order by w.place, h.first_seq
""")


def read_updates(connection: Connection, watched: Sequence[Subscription]) -> list[SubscriptionUpdate]:
    """Updates of these responses in one snapshot; running ones without new events are left out."""
    rows = connection.execute(_READ_UPDATES, arrays.fields(Subscription, watched)).all()
    return [
        _update_of(watched[place - 1], [row[1:] for row in group])
        for place, group in groupby(rows, key=lambda row: row[0])
    ]


def _update_of(watched: Subscription, rows: Sequence[tuple[Any, ...]]) -> SubscriptionUpdate:
    status, end = rows[0][:2]
    if status is None:
        return SubscriptionUpdate(watched, "gone", 0, [])
    if status not in ("queued", "in_progress"):
        return SubscriptionUpdate(watched, "ended", 0, [])
    try:
        events = _events_of_columns(row[-_WIDTH:] for row in rows)
        if events:
            events[:0] = _events_of_columns([rows[0][2:-_WIDTH]])[-1:]
    except ValueError:  # msgspec's errors among them
        fields = response_fields(watched.response_id, watched.tenant)
        log.exception("the events of %s cannot be decoded", fields["response_id"], extra=fields)
        return SubscriptionUpdate(watched, "unreadable", 0, [])
    if events:
        return SubscriptionUpdate(watched, "running", events[-1].event.sequence_number + 1, events)
    return SubscriptionUpdate(watched, "running", end or 0, [])


def _events_of_columns(rows: Iterable[Sequence[Any]]) -> list[LoggedEvent]:
    """The events of rows of LOG_COLUMNS, which are null where there is no row."""
    return list(_events_of((hot_row(row) for row in rows if row[0] is not None), 0))
