"""The state of the schema, seen by this release, and what is in the way of an upgrade or a downgrade."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from server.store.database_errors import is_statement_timeout
from server.store.schema.schema_session import connect
from server.store.schema.upgrade import Migration, migrations, newest_revision

SchemaState = Literal["current", "behind", "newer", "unknown"]
"""The database's revision, seen by this release. `behind`: an older one, or none. `newer`: one that this
release does not know and may serve on. `unknown`: one that it does not know, and may not serve on."""
BEHIND = "The database's schema is behind this release; run: holdfast db upgrade"
UNKNOWN = "The database was made by a newer release of Holdfast; use that one."
SILENT_SECONDS = 60
"""A replica without a heartbeat for longer is not counted as living: each beats at least every second."""
OLD_TRANSACTION_SECONDS = 2
"""Shorter transactions are over before an upgrade would have to wait for them."""
LOSS_CHECK = "5s"
"""The time for asking whether a column has values; without an answer until then it counts as one that has."""


def current_revision(connection: Connection) -> str | None:
    """The database's revision; None for a database that was never migrated."""
    return MigrationContext.configure(connection).get_current_revision()


def schema_state(url: str) -> SchemaState:
    """The database's schema, seen by this release. Raises DatabaseError."""
    with connect(url) as connection:
        return state_of(connection)


def state_of(connection: Connection) -> SchemaState:
    known = [migration.revision for migration in migrations()]
    return compare(current_revision(connection), known, newest_revision(), read_recorded(connection))


def compare(
    found: str | None, known: Collection[str], newest: str, recorded: dict[str, str] | None
) -> SchemaState:
    """The state of a database at the revision `found`, for a release that knows others. Pure."""
    if found == newest:
        return "current"
    if found is None or found in known:
        return "behind"
    if recorded is None or found not in recorded:
        return "unknown"
    return "newer" if all(oldest in known for oldest in recorded.values()) else "unknown"


def read_recorded(connection: Connection) -> dict[str, str] | None:
    """The oldest code that may serve, by applied revision; None without the table."""
    if connection.scalar(text("select to_regclass('schema_compatibility')")) is None:
        return None
    rows = connection.execute(text("select revision, oldest_code from schema_compatibility"))
    return {row.revision: row.oldest_code for row in rows}


@dataclass(frozen=True, slots=True)
class LivingReplica:
    """A replica that is alive and has beaten lately."""

    id: str
    host: str
    pid: int
    version: str
    revision: str
    """The revision of the schema that its release needs."""
    silent_seconds: float


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that a migration may have to wait for."""

    pid: int | None
    """None for a prepared transaction."""
    name: str
    """The session's `application_name` and role, or the prepared transaction's name."""
    state: str
    seconds: float | None
    """Since it began; None where the database does not tell this role."""


@dataclass(frozen=True, slots=True)
class SchemaReport:
    """The database beside its revision."""

    replicas: Sequence[LivingReplica]
    invalid_indexes: Sequence[str]
    transactions: Sequence[OpenTransaction]


def read_report(connection: Connection) -> SchemaReport:
    """Reads the report in the caller's transaction. Raises DatabaseError."""
    return SchemaReport(
        replicas=living_replicas(connection),
        invalid_indexes=[name for (name,) in connection.execute(text(_INVALID_INDEXES))],
        transactions=[
            OpenTransaction(*row) for row in connection.execute(text(_OPEN), {"age": OLD_TRANSACTION_SECONDS})
        ],
    )


def living_replicas(connection: Connection) -> list[LivingReplica]:
    """The replicas that are alive, in order of their start; empty before the first migration."""
    if connection.scalar(text("select to_regclass('replicas')")) is None:
        return []
    rows = connection.execute(text(_LIVING), {"silent": SILENT_SECONDS})
    return [LivingReplica(*row) for row in rows]


def needing(replicas: Sequence[LivingReplica], migration: Migration) -> list[LivingReplica]:
    return [replica for replica in replicas if replica.revision >= migration.revision]


def losses(connection: Connection, migration: Migration) -> Iterator[str]:
    """The tables and columns with anything in them that the migration's downgrade deletes."""
    connection.execute(text(f"set local statement_timeout = '{LOSS_CHECK}'"))
    for name in migration.lost:
        table, _, column = name.partition(".")
        condition = f"where {column} is not null" if column else ""
        query = text(f"select exists (select from {table} {condition})")
        try:
            with connection.begin_nested():
                full = bool(connection.scalar(query))
        except DBAPIError as error:
            if not is_statement_timeout(error):
                raise
            full = True
        if full:
            yield name


_LIVING = """
    select cast(id as text), host, pid, version, revision,
           cast(extract(epoch from clock_timestamp() - heartbeat_at) as float8) as silent
    from replicas
    where state = 'alive' and heartbeat_at > clock_timestamp() - make_interval(secs => :silent)
    order by started_at
"""
_INVALID_INDEXES = """
    select cast(indexrelid as regclass)::text from pg_index
    where not indisvalid and indrelid in (select oid from pg_class
                                          where relnamespace = current_schema()::regnamespace)
    order by 1
"""
_OPEN = """
    with tables as (
        select oid from pg_class where relnamespace = current_schema()::regnamespace and relkind in ('r', 'p')
    ), holders as (
        select distinct pid, virtualtransaction from pg_locks
        where granted and locktype = 'relation' and relation in (select oid from tables)
          and database = (select oid from pg_database where datname = current_database())
          and pid is distinct from pg_backend_pid()
    )
    select a.pid, concat_ws(' of ', nullif(a.application_name, ''), a.usename), coalesce(a.state, 'unknown'),
           cast(extract(epoch from clock_timestamp() - a.xact_start) as float8) as seconds
    from pg_stat_activity a
    where a.datname = current_database() and a.pid <> pg_backend_pid()
      and (a.pid in (select pid from holders) or a.backend_xmin is not null)
      and coalesce(a.xact_start < clock_timestamp() - make_interval(secs => :age), true)
      and coalesce(a.backend_type, 'client backend') = 'client backend'  -- not told of other roles' sessions
    union all
    select null, gid, 'prepared', cast(extract(epoch from clock_timestamp() - prepared) as float8)
    from pg_prepared_xacts where database = current_database()
    order by seconds desc nulls last
"""
"""Who holds a lock on a table of the schema, or a snapshot, for which `create index concurrently` waits."""
