"""Reading stored responses with everything that must agree with them, page by page, changing nothing.

Every page is a read-only transaction of its own on one snapshot, so what is compared belongs together, and a
long audit keeps no old row versions alive. Bodies are streamed: of a page's logs and items, few are in memory
at once.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Connection, Row, TextClause, text

from server.protocol.ids import min_uuid_at
from server.protocol.responses.events import Event
from server.store import log_read
from server.store.content.responses import StoredResponse
from server.store.log_read import LogRow

PAGE = 100
_STREAMED = {"yield_per": 16}
_HIGHEST = UUID(int=2**128 - 1)
_MAX_CLOCK_SKEW = timedelta(days=1)
"""An id's time is a server's, `created_at` the database's: the one only narrows the search for the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Which responses are audited: of each tenant the newest `limit`, created at or after `since`."""

    tenant: str | None = None
    since: datetime | None = None
    limit: int | None = None
    replays: bool = True
    """Whether streams are also read from the middle, as a client that comes back does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditColumns:
    """A row's columns that readers are not shown."""

    deleted_at: datetime | None
    expires_at: datetime | None
    queued_at: datetime | None
    started_at: datetime | None
    first_token_at: datetime | None
    key_id: str | None
    deaths: int
    can_begin_again: bool
    replica_id: UUID | None
    replica_state: str | None
    heartbeat_at: datetime | None
    has_next: bool
    """Whether a row goes on from this one; looked up for deleted ones only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviousResponse:
    """The response that `previous_id` names, as far as it is there in the same tenant."""

    exists: bool
    finished_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """A response's line in the ledger."""

    key_id: str | None
    status: str
    stored: bool
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    started_at: datetime
    finished_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedItem:
    side: int
    idx: int
    id: str
    type: str
    role: str | None
    status: str | None
    payload: str


@dataclass(frozen=True, slots=True)
class HotRow:
    """A row of a running response's log, and the attempt that wrote it."""

    row: LogRow
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedStream:
    """An ended response's log."""

    last_seq: int
    codec: int
    body: str


@dataclass(frozen=True, slots=True)
class Replay:
    """What a reader gets who asks for the events from `first` on."""

    first: int
    events: Sequence[Event]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedResponse:
    """One response as a snapshot of the database has it."""

    stored: StoredResponse
    audit_columns: AuditColumns
    previous: PreviousResponse
    ledger_entry: LedgerEntry | None
    items: Sequence[AuditedItem]
    hot: Sequence[HotRow]
    compacted: CompactedStream | None
    replays: Sequence[Replay]


@dataclass(frozen=True, slots=True)
class PageTime:
    """When a page was read, and since when a server has been there to bring its responses forward."""

    now: datetime
    served_since: datetime | None


@contextmanager
def snapshot(connection: Connection) -> Iterator[None]:
    """A transaction that sees one state of the database and can change nothing.

    What is read of a page is compared before more of it is fetched, which may take a slow machine longer than
    a transaction of the server may be idle.
    """
    with connection.begin():
        connection.execute(text("set transaction isolation level repeatable read, read only"))
        connection.execute(text("set local idle_in_transaction_session_timeout = '60s'"))
        yield


def tenants(connection: Connection) -> list[str]:
    """Every tenant that has a response; one step of the index each."""
    with snapshot(connection):
        return list(connection.scalars(_TENANTS))


_TENANTS = text(
    """
    with recursive found (tenant) as (
        select min(tenant) from responses
        union all
        select (select min(r.tenant) from responses r where r.tenant > f.tenant)
        from found f where f.tenant is not null
    )
    select tenant from found where tenant is not null
    """
)

_AUDIT_COLUMNS = list(AuditColumns.__dataclass_fields__)
_LEDGER_COLUMNS = list(LedgerEntry.__dataclass_fields__)
_PAGE = text(
    f"""
    select {", ".join(f"r.{name}" for name in StoredResponse.__dataclass_fields__)},
           r.deleted_at as x_deleted_at, r.expires_at as x_expires_at, r.queued_at as x_queued_at,
           r.started_at as x_started_at, r.first_token_at as x_first_token_at, r.key_id as x_key_id,
           r.deaths as x_deaths, r.asked is not null as x_can_begin_again, r.replica_id as x_replica_id,
           p.state as x_replica_state, p.heartbeat_at as x_heartbeat_at,
           r.deleted_at is not null and exists (
               select from responses n where n.tenant = r.tenant and n.previous_id = r.id) as x_has_next,
           b.id is not null as b_exists, b.finished_at as b_finished_at,
           u.response_id as u_response_id, {", ".join(f"u.{name} as u_{name}" for name in _LEDGER_COLUMNS)}
    from responses r
    left join replicas p on p.id = r.replica_id
    left join responses b on b.tenant = r.tenant and b.id = r.previous_id
    left join usage_ledger u on u.tenant = r.tenant and u.response_id = r.id
    where r.tenant = :tenant and r.id <= :highest and r.id >= :lowest
      and (cast(:since as timestamptz) is null or r.created_at >= :since)
    order by r.id desc limit :page
    """  # noqa: S608 - names of our own columns
)
_ITEMS = text(
    """
    select response_id, side, idx, id, type, role, status, payload::text as payload from items
    where tenant = :tenant and response_id = any(:ids) order by response_id desc, side, idx
    """
)
_HOT = text(
    """
    select response_id, first_seq, n, kind, output_index, content_index, at, body, attempt
    from response_events_hot
    where tenant = :tenant and response_id = any(:ids) order by response_id desc, first_seq
    """
)
_FOLDED = text(
    """
    select response_id, last_seq, codec, body from response_streams
    where tenant = :tenant and response_id = any(:ids) order by response_id desc
    """
)
_PAGE_TIME = text(
    """
    select clock_timestamp(), min(started_at) from replicas
    where state = 'alive' and heartbeat_at >= clock_timestamp() - make_interval(secs => :grace)
    """
)


def responses(
    connection: Connection, tenant: str, scope: Scope, grace_seconds: float
) -> Iterator[tuple[AuditedResponse, PageTime]]:
    """A tenant's responses in that scope, newest first, each with the time at which it stood so."""
    highest, left = _HIGHEST, scope.limit
    lowest = _lowest(scope.since)
    while left is None or left > 0:
        size = PAGE if left is None else min(left, PAGE)
        place = {
            "tenant": tenant,
            "highest": highest,
            "lowest": lowest,
            "since": scope.since,
            "page": size,
        }
        with snapshot(connection):
            moment = PageTime(*connection.execute(_PAGE_TIME, {"grace": grace_seconds}).one())
            rows = connection.execute(_PAGE, place).all()
            for response in _audited_responses(connection, tenant, rows, replays=scope.replays):
                yield response, moment
        if len(rows) < size:
            return
        highest = UUID(int=rows[-1].id.int - 1)
        left = None if left is None else left - size


def _lowest(since: datetime | None) -> UUID:
    if since is None:
        return UUID(int=0)
    return min_uuid_at(int((since - _MAX_CLOCK_SKEW).timestamp() * 1000))


def _audited_responses(
    connection: Connection, tenant: str, rows: Sequence[Row[Any]], *, replays: bool
) -> Iterator[AuditedResponse]:
    place: dict[str, object] = {"tenant": tenant, "ids": [row.id for row in rows]}
    items, hot, folded = (_GroupedRows(connection, query, place) for query in (_ITEMS, _HOT, _FOLDED))
    for row in rows:
        rows_hot = [HotRow(_log_row(found), found.attempt) for found in hot.of(row.id)]
        stream = next((_compacted_stream(found) for found in folded.of(row.id)), None)
        yield AuditedResponse(
            stored=StoredResponse(
                **{name: getattr(row, name) for name in StoredResponse.__dataclass_fields__}
            ),
            audit_columns=AuditColumns(**{name: getattr(row, f"x_{name}") for name in _AUDIT_COLUMNS}),
            previous=PreviousResponse(exists=row.b_exists, finished_at=row.b_finished_at),
            ledger_entry=LedgerEntry(**{name: getattr(row, f"u_{name}") for name in _LEDGER_COLUMNS})
            if row.u_response_id is not None
            else None,
            items=[_item(found) for found in items.of(row.id)],
            hot=rows_hot,
            compacted=stream,
            replays=_replays(connection, tenant, row.id, rows_hot, stream) if replays else (),
        )


class _GroupedRows:
    """Rows of another table, streamed in the order of a page's responses and given out one by one."""

    def __init__(self, connection: Connection, query: TextClause, place: dict[str, object]) -> None:
        rows = connection.execute(query, place, execution_options=_STREAMED)
        self._groups = groupby(rows, key=lambda row: row.response_id)
        self._next = next(self._groups, None)

    def of(self, response: UUID) -> list[Row[Any]]:
        if self._next is None or self._next[0] != response:
            return []
        found = list(self._next[1])
        self._next = next(self._groups, None)
        return found


def _item(row: Row[Any]) -> AuditedItem:
    return AuditedItem(**{name: getattr(row, name) for name in AuditedItem.__dataclass_fields__})


def _log_row(row: Row[Any]) -> LogRow:
    return LogRow(
        row.first_seq,
        row.n,
        row.kind,
        row.output_index,
        row.content_index,
        row.at,
        msgspec.Raw(row.body.encode()),
    )


def _compacted_stream(row: Row[Any]) -> CompactedStream:
    return CompactedStream(last_seq=row.last_seq, codec=row.codec, body=row.body)


def _replays(
    connection: Connection, tenant: str, response: UUID, hot: Sequence[HotRow], folded: CompactedStream | None
) -> list[Replay]:
    """The log as the server reads it, from the start, just after it, the middle and the last event.

    None of a log that cannot be read at all: whoever looks at its rows finds that.
    """
    last = folded.last_seq if folded else sum(part.row.n for part in hot) - 1
    places = sorted({place for place in (0, 1, last // 2, last) if 0 <= place <= last})
    try:
        return [Replay(place, log_read.read(connection, tenant, response, place)) for place in places]
    except (msgspec.MsgspecError, ValueError):
        return []
