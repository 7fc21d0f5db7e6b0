"""Queries that an operator has written, in a session that has logged in as a reader and can do nothing else.

`set role` in a session of the server's own could be undone by the query. So the session is that of a user who
has no other rights. It is one statement (extended protocol) in a read-only transaction that is rolled back,
bounded in time, rows, columns and bytes. It names no function that may do more than read
(`_require_reading`).

Every value comes as text. The query runs inside another, which cuts long values and counts the rows, so that
a value of 1 GB is not sent. `admin_views` lists the views to query.
"""

import contextlib
import re
import resource
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from time import monotonic
from typing import Final, NamedTuple

import psycopg
from sqlalchemy import Connection, text

from server.errors import ConfigError
from server.store import database_roles
from server.store.timeout_connection import SessionSettings, TimeoutConnection, connect

SECONDS: Final = 5
MAX_ROWS: Final = 10_000
MAX_BYTES: Final = 10_000_000
"""Bytes of all values of a result."""
MAX_COLUMNS: Final = 100
MAX_VALUE_CHARS: Final = 100_000
MAX_QUERY_CHARS: Final = 20_000
EMBEDDED_USER: Final = "holdfast_console"
"""The reader that a server makes in an embedded database."""
SESSION_BYTES: Final = 1 << 30
"""The most memory of a session's process of an embedded Postgres, whose other processes have their own."""
_LIMITS: SessionSettings = {
    "statement_timeout": f"{SECONDS}s",
    "lock_timeout": "1s",
    "idle_in_transaction_session_timeout": "10s",
    "timezone": "UTC",
}
_MAY_MORE = """
    select exists (
        select from pg_roles where rolname = session_user
        and (rolsuper or rolcreaterole or rolcreatedb or rolreplication or rolbypassrls)
    ) or exists (
        select from pg_roles where rolname in ('pg_read_server_files', 'pg_write_server_files',
            'pg_execute_server_program', 'pg_write_all_data', 'pg_read_all_data', 'holdfast_server')
        and pg_has_role(session_user, oid, 'member')
    ) or has_table_privilege(session_user, 'responses', 'insert, update, delete, truncate')
    or has_column_privilege(session_user, 'api_keys', 'digest', 'select')
"""
_NAME = re.compile(r"[a-z_][a-z0-9_$]*")
_ESCAPED_NAME: Final = 'u&"'
"""The beginning of an identifier that is written with escapes, which hide its name."""
HARMLESS: Final = (
    *("random", "random_normal", "gen_random_uuid", "uuidv4", "uuidv7", "clock_timestamp", "timeofday"),
    *("pg_sleep", "pg_relation_size", "pg_table_size", "pg_indexes_size", "pg_total_relation_size"),
    *("pg_database_size", "pg_tablespace_size", "pg_relation_filenode", "pg_is_in_recovery"),
    *("pg_current_wal_lsn", "pg_current_wal_insert_lsn", "pg_partition_tree", "pg_partition_ancestors"),
    *("pg_blocking_pids", "system", "bernoulli"),
)
"""Volatile functions that only read, draw or wait; `system` is the name of a role as well."""
WITH_EFFECT: Final = ("txid_current", "pg_current_xact_id")
"""Functions that are not volatile and take a transaction's id, whose end is written to the log."""
_CALLED = """
    select min(proname) from pg_catalog.pg_proc
    where proname = any(%s) and proname <> all(%s) and (provolatile = 'v' or proname = any(%s))
"""
_NOT_A_READER = (
    "The user of reader-database-url may do more than read; make one with"
    " `holdfast db create-user NAME --as reader`."
)
_SENTENCES = {
    "25006": "This page only reads.",
    "53200": "The query needs more memory than there is.",
    "53300": "All connections of the reader are in use; try again in a moment.",
    "57014": f"The query took longer than {SECONDS} s and was ended.",
}
"""Sentences by SQLSTATE; of other errors Postgres' own sentence is shown."""


class QueryFailed(Exception):
    """Why there is no result, in a sentence."""


class Column(NamedTuple):
    """A column of a result; `type_oid` is that of the query, though every value is text."""

    name: str
    type_oid: int


@dataclass(frozen=True, slots=True)
class QueryResult:
    columns: Sequence[Column]
    rows: Sequence[Sequence[str | None]]
    cut: str
    """A sentence about the limit that has cut it; empty if it is whole."""
    seconds: float


def prepare_embedded(url: str) -> str:
    """The URL of the reader of an embedded database, which is made if there is none. Raises QueryFailed.

    It needs no password: whoever may use the socket's directory is trusted.
    """
    try:
        if not database_roles.has_user(url, EMBEDDED_USER):
            database_roles.create_embedded_reader(url, EMBEDDED_USER)
    except ConfigError as error:
        raise QueryFailed(str(error)) from error
    return psycopg.conninfo.make_conninfo(url, user=EMBEDDED_USER)


def run_query(url: str, query: str, *, explain: bool, is_embedded: bool) -> QueryResult:
    """The result of one query, or its plan. Raises QueryFailed."""
    began = monotonic()
    text = query.strip().rstrip(";").rstrip()
    try:
        with closing(connect(url, "holdfast console", _LIMITS, pooled=True)) as connection:
            connection.read_only = True
            if connection.execute(_MAY_MORE).fetchone() != (False,):
                raise QueryFailed(_NOT_A_READER)
            _require_reading(connection, text)
            if is_embedded:
                _limit_memory(connection.info.backend_pid)
            columns = _columns(connection, text)
            if explain:
                rows, cut = _read(connection, f"explain (settings) {text}")
                columns = [Column("plan", 25)]
            else:
                rows, cut = _read(connection, _bounded(text, len(columns)))
    except psycopg.Error as error:
        raise QueryFailed(_sentence(error)) from error
    return QueryResult(columns, rows, cut, monotonic() - began)


def _require_reading(connection: TimeoutConnection, query: str) -> None:
    """Raises QueryFailed for a query that names a function which may write, lock or signal.

    A read-only transaction lets such functions write to the log, take advisory locks and change settings, and
    their right belongs to everybody. Any mention counts, also in a string or a comment: what is named nowhere
    cannot be called, because functions that run a query given as text, which could be put together, are
    volatile too.
    """
    lowered = query.lower()
    if _ESCAPED_NAME in lowered:
        raise QueryFailed('Write names without escapes: U&"…" is refused.')
    names = list(set(_NAME.findall(lowered)))
    row = connection.execute(_CALLED, [names, list(HARMLESS), list(WITH_EFFECT)]).fetchone()
    if row is not None and row[0] is not None:
        raise QueryFailed(f"This page only reads, and {row[0]} may do more; a session of psql may call it.")


def _limit_memory(pid: int) -> None:
    """Bounds the memory of the session's process, where that has the account of this one, on Linux."""
    if not hasattr(resource, "prlimit"):
        return
    with contextlib.suppress(OSError, ValueError):
        _soft, hard = resource.prlimit(pid, resource.RLIMIT_AS)
        resource.prlimit(pid, resource.RLIMIT_AS, (SESSION_BYTES, hard))


def _columns(connection: TimeoutConnection, query: str) -> list[Column]:
    """The columns of a query's result, without running it. Raises QueryFailed for one that gives no rows."""
    connection.pgconn.send_prepare(b"", query.encode())
    connection.read_results()
    connection.pgconn.send_describe_prepared(b"")
    described = connection.read_results()[0]
    names = [described.fname(index) or b"" for index in range(described.nfields)]
    if not names:
        raise QueryFailed("Write a query that gives rows: select, with, values or table.")
    if described.nparams:
        raise QueryFailed("The query has parameters such as $1; write their values instead.")
    if len(names) > MAX_COLUMNS:
        raise QueryFailed(f"A result has at most {MAX_COLUMNS} columns.")
    return [Column(name.decode(errors="replace"), described.ftype(index)) for index, name in enumerate(names)]


def _bounded(query: str, columns: int) -> str:
    """The query inside one that cuts values and rows. The line break ends a comment of the query's."""
    names = [f"c{number}" for number in range(columns)]
    values = ", ".join(f"left({name}::text, {MAX_VALUE_CHARS})" for name in names)
    return f"select {values} from (\n{query}\n) as q ({', '.join(names)}) limit {MAX_ROWS + 1}"


def _read(connection: TimeoutConnection, query: str) -> tuple[list[tuple[str | None, ...]], str]:
    """The rows up to the limits, and which limit has cut them. What is not read any more is cancelled."""
    rows: list[tuple[str | None, ...]] = []
    size = 0
    # `stream` gives a generator, which cancels the query when it is closed.
    with connection.cursor() as cursor, closing(cursor.stream(query.encode())) as stream:
        for row in stream:
            size += sum(len(value.encode()) for value in row if value is not None)
            if size > MAX_BYTES:
                return (
                    rows,
                    f"The result has more than {MAX_BYTES // 1_000_000} MB; these rows are the first.",
                )
            if len(rows) == MAX_ROWS:
                return rows, f"The result has more than {MAX_ROWS:,} rows; these are the first."
            rows.append(row)
    is_cut = any(value is not None and len(value) == MAX_VALUE_CHARS for row in rows for value in row)
    return rows, f"Values are cut after {MAX_VALUE_CHARS:,} characters." if is_cut else ""


def _sentence(error: psycopg.Error) -> str:
    """The database's message about a query, in one line."""
    known = _SENTENCES.get(error.sqlstate or "")
    message = error.diag.message_primary or str(error).strip().partition("\n")[0]
    if "multiple commands" in message:
        return "Write one statement, not several."
    if error.sqlstate is None:
        return f"The database does not answer: {message or 'the connection was lost'}."
    hint = f" {error.diag.message_hint}" if error.diag.message_hint and known is None else ""
    return known or f"{message[:1].upper()}{message[1:].rstrip('.')}.{hint}"


_COLUMNS = text("""
    select c.relname, coalesce(obj_description(c.oid, 'pg_class'), '') as view_comment, a.attname,
        format_type(a.atttypid, a.atttypmod), coalesce(col_description(c.oid, a.attnum), '')
    from pg_class c join pg_attribute a on a.attrelid = c.oid
    where c.relnamespace = 'admin'::regnamespace and c.relkind = 'v' and a.attnum > 0 and not a.attisdropped
    order by c.relname, a.attnum limit 1000
""")


class ViewColumn(NamedTuple):
    name: str
    type: str
    comment: str


class AdminView(NamedTuple):
    name: str
    comment: str
    columns: Sequence[ViewColumn]


def admin_views(connection: Connection) -> list[AdminView]:
    """The views of the schema `admin`, by name."""
    views: dict[str, tuple[str, list[ViewColumn]]] = {}
    for view, about, name, kind, comment in connection.execute(_COLUMNS):
        views.setdefault(view, (about, []))[1].append(ViewColumn(name, kind, comment))
    return [AdminView(f"admin.{view}", about, columns) for view, (about, columns) in views.items()]
