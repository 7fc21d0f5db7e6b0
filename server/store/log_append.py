"""Appends to the event log: rows in binary COPY, the fast commit of a step, folding of an ended log.

A commit is fenced by a share lock on the replica's row, so a replica that was declared dead cannot append to
a response that another has claimed. Deltas of one kind are packed into a row and written with COPY. The rows
of an ended response are folded into one: a short log with the end, a long one by the retention thread, so
that no other response waits for it.

`append_and_commit` is the commit of every engine step in which no response begins or ends, in two exchanges
with Postgres. After each exchange the thread must acquire the GIL again, so the fence and the start of COPY
are one query, and the end of COPY and the commit have one answer. Its fence is the replica's. The ownership
of each response is not checked at every step: a new owner continues at the same sequence number, so the log's
primary key rejects the second writer and never holds rows of both. A replica that has lost a response without
meeting another writer learns of it with its next heartbeat, and cannot end the response, because `finish`
checks the owner.
"""

import logging
import struct
from array import array
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

import msgspec
from sqlalchemy import Connection, text

from server.protocol.responses.events import Event, Kind
from server.store import arrays
from server.store.cluster.leases import Fenced
from server.store.commit_probe import Probe, fence_query, read_time
from server.store.content.storage_usage import adding
from server.store.driver_statements import execute, psycopg_connection
from server.store.log_read import FOLDED_ROWS
from server.store.timeout_connection import TimeoutConnection

log = logging.getLogger("holdfast.events")

CODECS = (2, 3)
"""Formats of folded streams. 2: a JSON array of the log's rows, with the attempt as each row's last
element. 3: as 2, without what its events repeat of the request, which the SQL functions
`holdfast_without_echo` and `holdfast_with_echo` take out and put in."""


class NewLogRow(NamedTuple):
    """A row to append: consecutive events of one kind and content part, and the tokens they came from."""

    tenant: str
    response_id: UUID
    first_seq: int
    n: int
    kind: int
    output_index: int
    content_index: int
    attempt: int
    body: bytes
    """JSON."""
    token_ids: bytes | None


_COPY = (
    "copy response_events_hot (tenant, response_id, first_seq, n, kind, output_index, content_index, attempt,"
    " body, token_ids) from stdin (format binary)"
)


def encode_rows(
    tenant: str, response_id: UUID, attempt: int, events: Sequence[Event], token_ids: Sequence[int]
) -> list[NewLogRow]:
    """The events of one commit, some if there are tokens, as rows; the first row has all tokens."""
    tokens: bytes | None = array("i", token_ids).tobytes() if token_ids else None
    rows: list[NewLogRow] = []
    begin = 0
    while begin < len(events):
        first, end = events[begin], begin + 1
        kind_item_and_part = first[1:4]
        if first.kind is Kind.WHOLE:
            body = first.body.encode()
        else:
            while end < len(events) and events[end][1:4] == kind_item_and_part:
                end += 1
            body = msgspec.json.encode([event.body for event in events[begin:end]])
        numbers = (first.sequence_number, end - begin, *kind_item_and_part, attempt)
        rows.append(NewLogRow(tenant, response_id, *numbers, body, tokens))
        begin, tokens = end, None
    return rows


_HEAD = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TAIL = struct.pack(">h", -1)
_BEGIN, _LENGTH = struct.Struct(">hi"), struct.Struct(">i")
_NUMBERS = struct.Struct(">i16siiiiihiiiiiii")
_NULL = _LENGTH.pack(-1)


def append(connection: Connection, rows: Iterable[NewLogRow]) -> None:
    with psycopg_connection(connection) as raw:
        raw.copy_in(_COPY, _encode_copy(rows))


NEW_LOG_ROWS = """
    unnest(
        cast(:first_seqs as integer[]), cast(:ns as integer[]), cast(:kinds as smallint[]),
        cast(:output_indexes as integer[]), cast(:content_indexes as integer[]),
        string_to_array(:bodies, chr(30))
    ) as l (first_seq, n, kind, output_index, content_index, body)
    """
"""The rows of `log_columns`, without tokens, for a statement that also inserts their response."""


def log_columns(rows: Sequence[NewLogRow]) -> dict[str, object]:
    """Rows of one response without tokens as parameters of one statement. JSON cannot contain chr(30)."""
    return {
        "first_seqs": arrays.literal([row.first_seq for row in rows]),
        "ns": arrays.literal([row.n for row in rows]),
        "kinds": arrays.literal([row.kind for row in rows]),
        "output_indexes": arrays.literal([row.output_index for row in rows]),
        "content_indexes": arrays.literal([row.content_index for row in rows]),
        "bodies": b"\x1e".join(row.body for row in rows).decode(),
    }


def append_and_commit(
    connection: Connection,
    replica: UUID,
    make_rows: Callable[[datetime], Iterable[NewLogRow] | None],
    *,
    probe: Probe | None = None,
    synchronous: bool = False,
) -> bool:
    """Commits the rows that `make_rows` returns for the database's time, which is read after the fence.

    False, without a change, if it returns None, or, without a call, if the probe does not match. A
    `synchronous` commit waits for the disk whatever the session's setting. The connection must not be in a
    transaction. Raises Fenced or DatabaseError; after these, or an exception of `make_rows`, the connection
    must be closed.
    """
    with psycopg_connection(connection) as raw:
        flush = "set local synchronous_commit = on; " if synchronous else ""
        begin = raw.begin_command().decode()
        query = f"{begin}; {flush}{fence_query(replica, probe)}; {_COPY}; commit"
        raw.pgconn.send_query(query.encode())
        *_, fence, _ = raw.read_results()
        microseconds = fence.get_value(0, 0)
        if microseconds is None:
            raise Fenced
        rows = make_rows(read_time(microseconds)) if fence.get_value(0, 1) == b"t" else None
        if rows is None:
            _abort_copy(raw)
            return False
        raw.pgconn.put_copy_data(_encode_copy(rows))
        raw.pgconn.put_copy_end()
        raw.read_results()
        return True


def _abort_copy(raw: TimeoutConnection) -> None:
    raw.pgconn.put_copy_end(b"given up")
    raw.read_results(allow_errors=True)
    raw.pgconn.send_query(b"rollback")
    raw.read_results()


def _encode_copy(rows: Iterable[NewLogRow]) -> bytes:
    """The rows in COPY's binary format."""
    return b"".join((_HEAD, *map(_encode_row, rows), _TAIL))


def _encode_row(row: NewLogRow) -> bytes:
    tenant, body, tokens = row.tenant.encode(), row.body, row.token_ids
    numbers = _NUMBERS.pack(
        *(16, row.response_id.bytes),
        *(4, row.first_seq),
        *(4, row.n),
        *(2, row.kind),
        *(4, row.output_index),
        *(4, row.content_index),
        *(4, row.attempt),
        len(body),
    )
    encoded_tokens = _NULL if tokens is None else _LENGTH.pack(len(tokens)) + tokens
    return b"".join((_BEGIN.pack(len(row), len(tenant)), tenant, numbers, body, encoded_tokens))


MAX_FOLDED_AT_END: Final = 2_000
"""The most events that are folded in the transaction of an end, which takes some 20 ms; all streams of the
replica wait for that transaction."""
_KEYS: Final = "unnest(cast(:tenants as text[]), cast(:ids as uuid[])) as e (tenant, id)"
_FOLD = arrays.with_numbers(
    adding(
        """
    insert into response_streams (tenant, response_id, last_seq, codec, body, size)
    select tenant, response_id, last_seq, case when short = body then 2 else 3 end, short,
        octet_length(short)
    from shortened
    returning tenant, size as bytes
    """,
        before=f"""
    gone as (
        delete from response_events_hot h using {_KEYS}
        where h.tenant = e.tenant and h.response_id = e.id
        returning h.*
    ), folded as (
        select tenant, response_id, max(first_seq + n) - 1 as last_seq, sum(n) as events,
            {FOLDED_ROWS} as body
        from gone group by tenant, response_id
    ), shortened as (
        select f.*, holdfast_without_echo(f.body, r.request) as short
        from folded f left join responses r on r.tenant = f.tenant and r.id = f.response_id)
    """,
        gives="(select array_agg(response_id) from folded where events <> last_seq + 1)",
    )
)
_WITH_GAPS = arrays.with_numbers(f"""
    select array_agg(response_id) from (
        select h.response_id from response_events_hot h
        join {_KEYS} on h.tenant = e.tenant and h.response_id = e.id
        group by h.tenant, h.response_id having sum(n) <> max(first_seq + n)) as g
""")
_UNFOLDED = text(
    """
    select h.tenant, h.response_id from response_events_hot h
    join responses r on r.tenant = h.tenant and r.id = h.response_id
    where h.first_seq = 0 and r.status not in ('queued', 'in_progress') and (
        select sum(n) = max(first_seq + n) from response_events_hot a
        where a.tenant = h.tenant and a.response_id = h.response_id)
    limit :limit
    """
)
_LOCK_ENDED = text("select from responses where tenant = :tenant and id = :id for update skip locked")


class LogGap(Exception):
    """Events are missing in the log of a response."""


def fold(connection: Connection, ended: Sequence[tuple[str, UUID]]) -> None:
    """Folds the rows of each ended response into one. Raises LogGap; the transaction is then rolled back."""
    _run_without_gaps(connection, _FOLD, ended)


def fold_short(connection: Connection, ended: Iterable[tuple[str, UUID, int]]) -> None:
    """`fold` of the responses with at most `MAX_FOLDED_AT_END` events, the third of each triple.

    The rows of the others stay for `fold_later`. Raises LogGap if numbers are missing in any of them.
    """
    short: list[tuple[str, UUID]] = []
    long: list[tuple[str, UUID]] = []
    for tenant, response_id, events in ended:
        (short if events <= MAX_FOLDED_AT_END else long).append((tenant, response_id))
    for statement, keys in ((_FOLD, short), (_WITH_GAPS, long)):
        if keys:
            _run_without_gaps(connection, statement, keys)


def _run_without_gaps(
    connection: Connection, statement: tuple[str, Sequence[str]], ended: Sequence[tuple[str, UUID]]
) -> None:
    """Runs a statement that returns the responses with gaps; raises LogGap for one."""
    tenants, ids = zip(*ended, strict=True)
    rows = execute(connection, statement, {"tenants": arrays.literal(tenants), "ids": arrays.literal(ids)})
    if rows and rows[0][0]:
        raise LogGap(rows[0][0][0])


def unfolded(connection: Connection, limit: int) -> list[tuple[str, UUID]]:
    """Ended responses, by tenant and id, whose rows can be folded; logs with gaps stay, for the audit."""
    return [(tenant, id_) for tenant, id_ in connection.execute(_UNFOLDED, {"limit": limit})]


def fold_later(connection: Connection, tenant: str, response_id: UUID) -> None:
    """`fold` of one, unless it is being deleted, or folded by another replica."""
    if connection.execute(_LOCK_ENDED, {"tenant": tenant, "id": response_id}).first() is not None:
        fold(connection, [(tenant, response_id)])


_NEXT = text(
    "select max(first_seq + n) from response_events_hot where tenant = :tenant and response_id = :id"
)


def next_seq(connection: Connection, tenant: str, response_id: UUID) -> int:
    """The next sequence number of a running response."""
    return connection.execute(_NEXT, {"tenant": tenant, "id": response_id}).scalar() or 0


_LOGGED = text(
    "select 1 from response_events_hot"
    " where tenant = :tenant and response_id = :id and first_seq = :seq and attempt = :attempt"
)
_DELETE_ORPHANED_LOG = text(
    """
    delete from response_events_hot e where e.tenant = :tenant and e.response_id = :id
      and not exists (select 1 from responses r where r.tenant = e.tenant and r.id = e.response_id)
    """
)


def is_logged(connection: Connection, tenant: str, response_id: UUID, seq: int, attempt: int) -> bool:
    """Whether the log has a row that begins with that sequence number and was written by that attempt."""
    parameters = {"tenant": tenant, "id": response_id, "seq": seq, "attempt": attempt}
    return connection.execute(_LOGGED, parameters).first() is not None


def delete_orphaned_log(connection: Connection, tenant: str, response_id: UUID) -> None:
    """Deletes the log of a response whose row was deleted while it ran."""
    connection.execute(_DELETE_ORPHANED_LOG, {"tenant": tenant, "id": response_id})
