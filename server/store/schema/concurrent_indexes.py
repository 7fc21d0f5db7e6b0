"""`create_index`: builds an index in a migration without blocking writes, on a plain or a partitioned table.

`create index concurrently` cannot run in a transaction, so what a migration did before is committed first,
and nothing is undone if the build fails. A migration that calls `create_index` therefore does nothing else,
or only what may be done twice: after a failure it runs again from its beginning. Indexes that are there and
valid are not built again; an invalid one, which an interrupted build has left, is dropped and built again.

`index_words` and `drop_words`: the index by which `admin.search` finds words, which an operator makes.
"""

from typing import Final

from alembic import op
from sqlalchemy import Connection, text

from server.store.schema.schema_session import TABLE_LOCK_TIMEOUT, try_for_locks

MAX_NAME = 63
"""Bytes of an identifier, beyond which Postgres cuts it."""
_DEFAULT_LOCK_SECONDS = 60.0


def create_index(
    name: str, table: str, definition: str, *, unique: bool = False, partitioned: bool = False
) -> None:
    """Builds the index, if it is not there. `definition` is what follows the table in `create index`, such as
    `(tenant, root_id) where root_id is not null`.

    A build waits for transactions that are older than itself, for as long as the upgrade waits for locks;
    nobody queues behind it meanwhile. A partitioned table is first given the index without its partitions'
    (`on only`), so that partitions made from then on have it; those that are there get theirs one by one.
    """
    context = op.get_context()
    kind = "unique index" if unique else "index"
    with context.autocommit_block():
        if context.as_sql:
            statement = _offline(kind, name, table, definition, partitioned=partitioned)
            context.impl.static_output(f"{statement};\n")
            return
        seconds = context.opts.get("lock_seconds") or _DEFAULT_LOCK_SECONDS
        build = _Build(op.get_bind(), kind, definition, lock_seconds=seconds)
        if partitioned:
            build.on_partitions(name, table)
        else:
            build.on_table(name, table)


def partition_index_name(name: str, partition: str) -> str:
    bare = partition.rpartition(".")[2].strip('"')
    return f"{bare}_{name}"[:MAX_NAME] if len(bare) + len(name) < MAX_NAME else f"{name[:30]}_{bare[-32:]}"


def _offline(kind: str, name: str, table: str, definition: str, *, partitioned: bool) -> str:
    """One statement. On a partitioned table it is not concurrent: which partitions there are is not known."""
    how = "" if partitioned else "concurrently "
    mark = "-- squawk-ignore require-concurrent-index-creation\n" if partitioned else ""
    return f"{mark}create {kind} {how}if not exists {name} on {table} {definition}"


class _Build:
    """The statements, on a connection in autocommit."""

    def __init__(self, connection: Connection, kind: str, definition: str, *, lock_seconds: float) -> None:
        self._connection = connection
        self._kind = kind
        self._definition = definition
        self._lock_seconds = lock_seconds

    def on_table(self, name: str, table: str) -> None:
        """Builds it concurrently, unless it is there and valid."""
        valid = self._is_valid(name)
        if valid:
            return
        self._execute(f"set lock_timeout = '{int(self._lock_seconds * 1000)}ms'")
        if valid is False:
            self._execute(f"drop index concurrently if exists {name}")
        self._execute(f"create {self._kind} concurrently {name} on {table} {self._definition}")
        self._execute(f"set lock_timeout = '{TABLE_LOCK_TIMEOUT}'")

    def on_partitions(self, name: str, table: str) -> None:
        """Builds it on each partition and attaches it; the last one makes the whole index valid."""
        if self._is_valid(name) is None:
            self._execute(f"create {self._kind} {name} on only {table} {self._definition}")
        for partition in self._without(name, table):
            own = partition_index_name(name, partition)
            self.on_table(own, partition)
            self._execute(f"alter index {name} attach partition {own}")

    def _without(self, name: str, table: str) -> list[str]:
        """The partitions that have no index attached to this one."""
        query = """
            select cast(inhrelid as regclass)::text from pg_inherits p
            where inhparent = to_regclass(:table) and not exists (
                select from pg_inherits a join pg_index i on i.indexrelid = a.inhrelid
                where a.inhparent = to_regclass(:name) and i.indrelid = p.inhrelid)
            order by 1
        """
        return list(self._connection.scalars(text(query), {"table": table, "name": name}))

    def _is_valid(self, name: str) -> bool | None:
        """None if there is no such index."""
        query = "select indisvalid from pg_index where indexrelid = to_regclass(:name)"
        is_valid: bool | None = self._connection.scalar(text(query), {"name": name})
        return is_valid

    def _execute(self, statement: str) -> None:
        """Runs it as it is: other ways would read `%` and `:` in it."""
        self._connection.exec_driver_sql(statement, execution_options={"no_parameters": True})


WORDS_INDEX: Final = "ix_items_words"
WORDS_LOCK_SECONDS = 60.0
"""The wait of a build for older transactions, and of a build or a removal for those that use items."""


def index_words(url: str) -> None:
    """Builds the index by partition, beside traffic; a repeated call goes on. Raises DatabaseError."""

    def make(session: Connection, left: float) -> None:
        connection = session.execution_options(isolation_level="AUTOCOMMIT")
        connection.execute(text(f"set statement_timeout = 0; set lock_timeout = '{TABLE_LOCK_TIMEOUT}'"))
        build = _Build(connection, "index", "using gin (admin.words(payload))", lock_seconds=left)
        build.on_partitions(WORDS_INDEX, "items")

    try_for_locks(url, WORDS_LOCK_SECONDS, make)


def drop_words(url: str) -> None:
    """Drops the index. Raises DatabaseError."""

    def drop(connection: Connection, _left: float) -> None:
        connection.execute(text(f"set local lock_timeout = '{TABLE_LOCK_TIMEOUT}'"))
        connection.execute(text(f"drop index if exists {WORDS_INDEX}"))
        connection.commit()

    try_for_locks(url, WORDS_LOCK_SECONDS, drop)
