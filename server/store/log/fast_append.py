"""A transaction that only appends to the event log, in two exchanges with Postgres.

This is the commit of every engine step in which no response begins or ends. After each exchange the thread
must acquire the GIL again, so the fence and the start of COPY are one query, and the end of COPY and the
commit have one answer.

The fence is the replica's. The ownership of each response is not checked at every step: a new owner continues
at the same sequence number, so the log's primary key rejects the second writer and never holds rows of both.
A replica that has lost a response without meeting another writer learns of it within seconds
(`recording/side_writer.py`), and cannot end the response, because `finish` checks the owner.
"""

import struct
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from uuid import UUID

from sqlalchemy import Connection

from server.store.cluster.leases import Fenced
from server.store.connection import TimeoutConnection
from server.store.database import psycopg_connection
from server.store.log.events import COPY, NewLogRow

_FENCE = (
    "select (extract(epoch from clock_timestamp()) * 1000000)::bigint from replicas"
    " where id = '%s' and state = 'alive' for key share"
)
_QUERY = f"begin; {_FENCE}; {COPY}; commit"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HEAD = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TAIL = struct.pack(">h", -1)
_BEGIN, _LENGTH = struct.Struct(">hi"), struct.Struct(">i")
_NUMBERS = struct.Struct(">i16siiiiihiiiiiii")
_NULL = _LENGTH.pack(-1)


def append_and_commit(
    connection: Connection, replica: UUID, make_rows: Callable[[datetime], Iterable[NewLogRow] | None]
) -> bool:
    """Commits the rows that `make_rows` returns for the database's time, which is read after the fence.

    False, without a change, if it returns None. The connection must not be in a transaction. Raises Fenced or
    DatabaseError; after these, or an exception of `make_rows`, the connection must be closed.
    """
    with psycopg_connection(connection) as raw:
        assert isinstance(raw, TimeoutConnection)
        raw.pgconn.send_query((_QUERY % replica).encode())
        _, fence, *_ = raw.read_results()
        microseconds = fence.get_value(0, 0)
        if microseconds is None:
            raise Fenced
        rows = make_rows(_EPOCH + timedelta(microseconds=int(microseconds)))
        if rows is None:
            _abort_copy(raw)
            return False
        raw.pgconn.put_copy_data(b"".join((_HEAD, *map(_encode, rows), _TAIL)))
        raw.pgconn.put_copy_end()
        raw.read_results()
        return True


def _abort_copy(raw: TimeoutConnection) -> None:
    raw.pgconn.put_copy_end(b"given up")
    raw.read_results(allow_errors=True)
    raw.pgconn.send_query(b"rollback")
    raw.read_results()


def _encode(row: NewLogRow) -> bytes:
    """A row in COPY's binary format."""
    tenant, body, tokens = row.tenant.encode(), row.body.encode(), row.token_ids
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
    told = _NULL if tokens is None else _LENGTH.pack(len(tokens)) + tokens
    return b"".join((_BEGIN.pack(len(row), len(tenant)), tenant, numbers, body, told))
