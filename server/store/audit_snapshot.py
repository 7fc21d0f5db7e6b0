"""Reads for `holdfast audit`: responses with all that is theirs, pictures, orphaned rows, idempotency keys.

Every page is a read-only transaction of its own on one snapshot, so what is compared belongs together, and a
long audit keeps no old row versions alive. Bodies are streamed: of a page's logs and items, few are in memory
at once.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from itertools import groupby
from operator import attrgetter
from typing import Any, Literal, NamedTuple, TypeVar
from uuid import UUID

import msgspec
from sqlalchemy import Connection, Row, TextClause, text

from server.protocol.ids import min_uuid_at
from server.protocol.input_images import CONTENT_PREFIX
from server.protocol.responses.events import Event
from server.store import log_read
from server.store.content.deletion import HIGHEST, LOWEST
from server.store.content.images import batches
from server.store.content.responses import StoredResponse
from server.store.log_read import LOG_COLUMNS, STREAM_BODY, LogRow, hot_row
from server.store.schema import partitions

PAGE = 100
_STREAMED = {"yield_per": 16}
_T = TypeVar("_T")
_MAX_CLOCK_SKEW = timedelta(days=1)
"""An id's time is a server's, `created_at` the database's: the one only narrows the search for the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Selects the audited responses: of each tenant the newest `limit`, created at or after `since`."""

    tenant: str | None = None
    since: datetime | None = None
    limit: int | None = None
    replays: bool = True
    """Whether streams are also read from the middle, as a client that comes back does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedRow(StoredResponse):
    """A response's row with columns that readers are not shown, and what other rows say."""

    deleted_at: datetime | None
    expires_at: datetime | None
    queued_at: datetime | None
    started_at: datetime | None
    replica_state: str | None
    heartbeat_at: datetime | None
    has_next: bool
    """Whether a row goes on from this one; looked up for deleted ones only."""
    previous_exists: bool
    """Whether the tenant has the response that `previous_id` names."""
    previous_finished_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedLedgerEntry:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedStream:
    """An ended response's log."""

    last_seq: int
    codec: int
    body: str


@dataclass(frozen=True, slots=True)
class Replay:
    """The events that a reader gets who asks for those from `first` on."""

    first: int
    events: Sequence[Event]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedResponse:
    stored: AuditedRow
    ledger_entry: AuditedLedgerEntry | None
    items: Sequence[AuditedItem]
    hot: Sequence[LogRow]
    folded: AuditedStream | None
    replays: Sequence[Replay]
    image_uses: Collection[tuple[str, bytes]] = ()
    """Ids of items, each with the digest of a picture that is kept for it."""


@dataclass(frozen=True, slots=True)
class PageTime:
    """When a page was read, and since when a server has been there to bring its responses forward."""

    now: datetime
    served_since: datetime | None


@contextmanager
def snapshot(connection: Connection) -> Iterator[None]:
    """A transaction that sees one state of the database and can change nothing."""
    with connection.begin():
        connection.execute(text("set transaction isolation level repeatable read, read only"))
        connection.execute(text("set local idle_in_transaction_session_timeout = '60s'"))
        yield


_OWN_COLUMNS = (*StoredResponse.__dataclass_fields__, "deleted_at", "expires_at", "queued_at", "started_at")
_LEDGER_COLUMNS = ", ".join(f"u.{name} as u_{name}" for name in AuditedLedgerEntry.__dataclass_fields__)
_PAGE = text(f"""
    select {", ".join(f"r.{name}" for name in _OWN_COLUMNS)}, p.state as replica_state, p.heartbeat_at,
           r.deleted_at is not null and exists (
               select from responses n where n.tenant = r.tenant and n.previous_id = r.id) as has_next,
           b.id is not null as previous_exists, b.finished_at as previous_finished_at,
           u.response_id as u_response_id, {_LEDGER_COLUMNS}
    from responses r
    left join replicas p on p.id = r.replica_id
    left join responses b on b.tenant = r.tenant and b.id = r.previous_id
    left join usage_ledger u on u.tenant = r.tenant and u.response_id = r.id
    where r.tenant = :tenant and r.id <= :highest and r.id >= :lowest
      and (cast(:since as timestamptz) is null or r.created_at >= :since)
    order by r.id desc limit :page
""")
_ITEMS = text(
    "select response_id, side, idx, id, type, role, status, payload::text as payload from items"
    " where tenant = :tenant and response_id = any(:ids) order by response_id desc, side, idx"
)
_HOT = text(f"""
    select response_id, {LOG_COLUMNS} from response_events_hot
    where tenant = :tenant and response_id = any(:ids) order by response_id desc, first_seq
""")
_FOLDED = text(f"""
    select s.response_id, s.last_seq, s.codec, {STREAM_BODY} as body from response_streams s
    left join responses r on r.tenant = s.tenant and r.id = s.response_id
    where s.tenant = :tenant and s.response_id = any(:ids) order by s.response_id desc
""")
_IMAGE_USES = text("""
    select owner as response_id, item_id, digest from item_images
    where tenant = :tenant and owner = any(:ids) and removed_at is null order by owner desc
""")
_OF_RESPONSES = (_ITEMS, _HOT, _FOLDED, _IMAGE_USES)
_PAGE_TIME = text("""
    select clock_timestamp(), min(started_at) from replicas
    where state = 'alive' and heartbeat_at >= clock_timestamp() - make_interval(secs => :grace)
""")


def responses(
    connection: Connection, tenant: str, scope: Scope, grace_seconds: float, page: int = PAGE
) -> Iterator[tuple[AuditedResponse, PageTime]]:
    """A tenant's responses in that scope, newest first, each with the time at which it stood so."""
    lowest, highest, remaining = LOWEST, HIGHEST, scope.limit
    if scope.since is not None:
        lowest = min_uuid_at(int((scope.since - _MAX_CLOCK_SKEW).timestamp() * 1000))
    while remaining is None or remaining > 0:
        size = page if remaining is None else min(remaining, page)
        bounds = {"highest": highest, "lowest": lowest, "since": scope.since, "page": size}
        with snapshot(connection):
            moment = PageTime(*connection.execute(_PAGE_TIME, {"grace": grace_seconds}).one())
            rows = connection.execute(_PAGE, {"tenant": tenant, **bounds}).all()
            for response in _audited_responses(connection, tenant, rows, replays=scope.replays):
                yield response, moment
        if len(rows) < size:
            return
        highest = UUID(int=rows[-1].id.int - 1)
        remaining = None if remaining is None else remaining - size


def _audited_responses(
    connection: Connection, tenant: str, rows: Sequence[Row[Any]], *, replays: bool
) -> Iterator[AuditedResponse]:
    parameters: dict[str, object] = {"tenant": tenant, "ids": [row.id for row in rows]}
    items, hot, folded, uses = (_GroupedRows(connection, query, parameters) for query in _OF_RESPONSES)
    for row in rows:
        log = [hot_row(part[1:]) for part in hot.of(row.id)]
        stream = next((_from_row(AuditedStream, part) for part in folded.of(row.id)), None)
        metered = row.u_response_id is not None
        yield AuditedResponse(
            stored=_from_row(AuditedRow, row),
            ledger_entry=_from_row(AuditedLedgerEntry, row, "u_") if metered else None,
            items=[_from_row(AuditedItem, item) for item in items.of(row.id)],
            hot=log,
            folded=stream,
            replays=_replays(connection, tenant, row.id, log, stream) if replays else (),
            image_uses={(use.item_id, use.digest) for use in uses.of(row.id)},
        )


class _GroupedRows:
    """Rows of another table, streamed in the order of a page's responses and given out one by one."""

    def __init__(self, connection: Connection, query: TextClause, parameters: dict[str, object]) -> None:
        rows = connection.execute(query, parameters, execution_options=_STREAMED)
        self._groups = groupby(rows, key=lambda row: row.response_id)
        self._next = next(self._groups, None)

    def of(self, response: UUID) -> list[Row[Any]]:
        if self._next is None or self._next[0] != response:
            return []
        rows = list(self._next[1])
        self._next = next(self._groups, None)
        return rows


def _from_row(kind: type[_T], row: Row[Any], prefix: str = "") -> _T:
    """A dataclass of the row's columns that have its fields' names after `prefix`."""
    return kind(**{field.name: getattr(row, prefix + field.name) for field in fields(kind)})  # type: ignore[arg-type]


def _replays(
    connection: Connection,
    tenant: str,
    response: UUID,
    hot: Sequence[LogRow],
    folded: AuditedStream | None,
) -> list[Replay]:
    """The log as read from several events on; none of one that cannot be read, which its rows tell."""
    last = folded.last_seq if folded else sum(part.n for part in hot) - 1
    firsts = sorted({first for first in (0, 1, last // 2, last) if 0 <= first <= last})
    try:
        return [Replay(first, log_read.read(connection, tenant, response, first)) for first in firsts]
    except (msgspec.MsgspecError, ValueError):
        return []


MAX_STRAYS = 1000
"""The most findings of each search."""
Search = Literal[
    "items", "response_events_hot", "response_streams", "item_images", "shared keys", "lost keys"
]
"""The table that has rows without their response; several idempotency keys of one response; and keys without
any trace of theirs."""


class Stray(NamedTuple):
    """Rows that a search through a whole table has found, of one response, which may not be there."""

    search: Search
    tenant: str
    response_id: UUID
    rows: int


_WITHOUT_RESPONSE = """
    select t.tenant, t.response_id, count(*) from {table} t
    where (cast(:tenant as text) is null or t.tenant = :tenant)
      and not exists (select from responses r where r.tenant = t.tenant and r.id = t.response_id)
    group by 1, 2 limit :most
"""
_SEARCHES: dict[Search, TextClause] = {
    "items": text(_WITHOUT_RESPONSE.format(table="items")),
    "response_events_hot": text(_WITHOUT_RESPONSE.format(table="response_events_hot")),
    "response_streams": text(_WITHOUT_RESPONSE.format(table="response_streams")),
    "shared keys": text("""
        select tenant, response_id, count(*) from idempotency_keys
        where left(key, 1) <> chr(10) and (cast(:tenant as text) is null or tenant = :tenant)
        group by 1, 2 having count(*) > 1 limit :most
    """),
    "lost keys": text("""
        select k.tenant, k.response_id, 1 from idempotency_keys k
        where left(k.key, 1) <> chr(10) and (cast(:tenant as text) is null or k.tenant = :tenant)
          and k.created_at < clock_timestamp() - make_interval(secs => :age)
          and not exists (select from responses r where r.tenant = k.tenant and r.id = k.response_id)
          and not exists (
              select from usage_ledger u where u.tenant = k.tenant and u.response_id = k.response_id)
          and not exists (
              select from replicas p
              where p.state = 'dead'
                and k.created_at between p.started_at and p.heartbeat_at + interval '1 minute')
        limit :most
    """),
}
"""Not lost are keys from the lifetime of a dead replica, with which an unstored response may have been lost,
and younger ones, which may belong to an unstored response that still runs."""


def strays(connection: Connection, tenant: str | None, key_seconds: float) -> Iterator[Stray]:
    """The findings of every search, at most MAX_STRAYS each; keys without a response from that age on."""
    for name, query in _SEARCHES.items():
        with snapshot(connection):
            parameters = {"tenant": tenant, "age": key_seconds, "most": MAX_STRAYS}
            rows = connection.execute(query, parameters).all()
        yield from (Stray(name, *row) for row in rows)


MAX_HASHED_BYTES = 64 * 1024 * 1024
"""Bytes of pictures that one statement hashes, unless one picture has more: statements have a timeout."""
_PAGE_IMAGES = 500


@dataclass(frozen=True, slots=True)
class ConversationImages:
    """The items of a conversation that name pictures, as id and JSON, and the uses in its name."""

    id: UUID
    items: Sequence[tuple[str, str]]
    uses: Collection[tuple[str, bytes]]


class UnsoundImage(NamedTuple):
    """A picture whose bytes are not what its digest and size say, or that has no use."""

    tenant: str
    digest: bytes
    problem: Literal["damaged", "unused"]


_CONVERSATIONS = text(f"""
    select id from conversations where tenant = :tenant and id > :after order by id limit {PAGE}
""")
_CONVERSATION_ITEMS = text(f"""
    select conversation_id, id, payload::text as payload from conversation_items
    where tenant = :tenant and conversation_id = any(:ids)
      and payload::text like '%"content":"{CONTENT_PREFIX}%'
""")


def conversations(connection: Connection, tenant: str) -> Iterator[ConversationImages]:
    """The conversations of a tenant in which there may be pictures."""
    after = LOWEST
    while True:
        with snapshot(connection):
            ids = list(connection.scalars(_CONVERSATIONS, {"tenant": tenant, "after": after}))
            if not ids:
                return
            parameters = {"tenant": tenant, "ids": ids}
            items = connection.execute(_CONVERSATION_ITEMS, parameters).all()
            uses = connection.execute(_IMAGE_USES, parameters).all()
        after = ids[-1]
        for owner in sorted({row[0] for row in (*items, *uses)}):
            yield ConversationImages(
                owner,
                [(row.id, row.payload) for row in items if row.conversation_id == owner],
                {(row.item_id, row.digest) for row in uses if row.response_id == owner},
            )


_IMAGES = text(f"""
    select i.digest, i.size, exists (
        select from item_images u where u.tenant = i.tenant and u.digest = i.digest) as used
    from images i
    where i.tenant = :tenant and i.digest > :after
      and (cast(:since as timestamptz) is null or i.created_at >= :since)
    order by i.digest limit {_PAGE_IMAGES}
""")
_DAMAGED = text("""
    select digest from images
    where tenant = :tenant and digest = any(cast(:digests as bytea[]))
      and (sha256(data) <> digest or octet_length(data) <> size)
""")


def unsound_images(connection: Connection, tenant: str, scope: Scope) -> Iterator[UnsoundImage]:
    """The damaged pictures, and those that no item names or has named until now. Pictures made before
    `scope.since` are left out; without `scope.replays` their bytes are not read.
    """
    after = b""
    while True:
        with snapshot(connection):
            parameters = {"tenant": tenant, "after": after, "since": scope.since}
            page = connection.execute(_IMAGES, parameters).all()
        if not page:
            return
        after = page[-1].digest
        yield from (UnsoundImage(tenant, row.digest, "unused") for row in page if not row.used)
        for batch in batches(page, attrgetter("size"), MAX_HASHED_BYTES) if scope.replays else ():
            digests = [row.digest for row in batch]
            with snapshot(connection):
                damaged = connection.scalars(_DAMAGED, {"tenant": tenant, "digests": digests}).all()
            yield from (UnsoundImage(tenant, digest, "damaged") for digest in damaged)


_USES_OF_NOTHING = text("""
    select u.tenant, u.owner, count(*) from item_images u
    where u.tenant = :tenant and u.removed_at is null and u.owner >= :from_id
      and not exists (select from responses r where r.tenant = u.tenant and r.id = u.owner)
      and not exists (select from conversations c where c.tenant = u.tenant and c.id = u.owner)
    group by 1, 2 limit :most
""")


def stray_uses(connection: Connection, tenant: str) -> list[Stray]:
    """Uses in the name of a response or conversation that does not exist, at most MAX_STRAYS. None of owners
    as old as those of a partition that is detached and not dropped yet: the drop removes their uses.
    """
    with snapshot(connection):
        from_id = partitions.first_kept_id(connection)
        parameters = {"tenant": tenant, "from_id": from_id, "most": MAX_STRAYS}
        rows = connection.execute(_USES_OF_NOTHING, parameters).all()
    return [Stray("item_images", *row) for row in rows]
