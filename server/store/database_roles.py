"""Database roles beside the schema's owner: `holdfast_server` without DDL, and readers; row-level security.

Three roles that cannot log in have the rights; users are members of one of them. `holdfast_server` serves.
`holdfast_reader` reads everything but secrets. `holdfast_tenant_reader` reads the rows of the tenants that
`reader_tenants` names for the user, which policies of row-level security select, and sees no others even if a
query forgets its condition. Both ask the views of the schema `admin`. These read tables with the rights of
who asks, so that the same policies hold.

COPY refuses tables with row-level security, and the recorder copies into `response_events_hot`: that table
has none, a tenant's readers have no right to it, and read `v_tenant_events` instead.

Every function raises ConfigError for what the database refuses.
"""

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Literal, LiteralString

import psycopg
from psycopg import sql
from psycopg.errors import DeadlockDetected, DuplicateObject, InsufficientPrivilege, UniqueViolation
from sqlalchemy import Table

from server.errors import ConfigError
from server.store.database_errors import DatabaseError, first_line
from server.store.schema import schema_session
from server.store.tables import ALL_TABLES
from server.store.timeout_connection import with_network_timeouts

SERVER = "holdfast_server"
READER = "holdfast_reader"
TENANT_READER = "holdfast_tenant_reader"
ROLES = (SERVER, READER, TENANT_READER)
Role = Literal["server", "reader"]
APPEND_ONLY = frozenset({"audit_trail", "key_requirement"})
"""Tables to which the server adds rows and which it never changes."""
READ_ONLY = frozenset({"schema_compatibility"})
"""Tables that only migrations change."""
COPIED_INTO = frozenset({"response_events_hot"})
HIDDEN_TABLES = frozenset({"seal_keys"})
HIDDEN_COLUMNS = {"api_keys": frozenset({"digest"}), "webhook_endpoints": frozenset({"secret", "old_secret"})}
"""Columns that no reader sees: with these, content and keys could be opened or guessed offline."""
OF_NO_TENANT = frozenset({"prices"})
"""Tables without tenants that a tenant's readers see, too."""
VIEWS = ("v_events", "v_images")
TENANT_VIEWS = {"v_tenant_events": "v_events", "v_tenant_images": "v_images"}
"""Views of a tenant's readers, and what they select from. The views beneath have the owner's rights."""
NOT_FOR_TENANTS = frozenset({"events", "tables", "unfinished"})
"""Views of the schema `admin` that show more than rows of a tenant's readers: replicas, sizes, hot events."""
READER_SETTINGS: dict[LiteralString, str] = {
    "default_transaction_read_only": "on",
    "statement_timeout": "30s",
    "lock_timeout": "1s",
    "idle_in_transaction_session_timeout": "60s",
}
MAX_READER_CONNECTIONS = 8
_MOST_DEADLOCKS = 10
"""Deadlocks in a row that are repeated; the next one is raised."""
TEMPORARY_FILES_OF_READER = "1GB"
"""`temp_file_limit` of a session in an embedded database; elsewhere a superuser may set it."""
_ADMIN_VIEWS = "select viewname from pg_views where schemaname = 'admin'"
_CREATE_TENANT_VIEW: LiteralString = (
    "create or replace view {} with (security_barrier) as select * from {} where tenant in {}"
)
_READABLE = sql.SQL("(select tenant from reader_tenants where role = current_user)")


@dataclass(frozen=True, slots=True)
class DatabaseUser:
    """A role that can log in; `tenants` is empty for one that sees all of them."""

    name: str
    role: Role
    tenants: tuple[str, ...]


def create_roles(url: str) -> None:
    """Makes the three roles, or gives them this release's rights; repeatable beside servers."""
    with _owner(url) as connection, schema_session.connect(url) as lock, schema_session.migration_lock(lock):
        for _ in range(_MOST_DEADLOCKS):
            with suppress(DeadlockDetected):  # with a transaction of a server, which locks in another order
                _create_roles(connection)
                return
        _create_roles(connection)


def _create_roles(connection: psycopg.Connection) -> None:
    for role in ROLES:
        _create_group(connection, role)
    for table in ALL_TABLES.tables.values():
        with connection.transaction():
            _grant(connection, table)
            if "tenant" in table.columns and table.name not in COPIED_INTO:
                _secure_rows(connection, table.name)
    with connection.transaction():
        _grant_views(connection)
        _grant_functions(connection)


def create_groups(url: str) -> None:
    """Makes the three roles without rights, which a restored dump's policies name."""
    with _owner(url) as connection:
        for role in ROLES:
            _create_group(connection, role)


def roles_exist(url: str) -> bool:
    """Whether `create_roles` has run in this database."""
    with _owner(url) as connection:
        return connection.execute("select 1 from pg_policies where policyname = %s", [SERVER]).rowcount > 0


def reader_options(url: str) -> str:
    """Libpq's `options` of a session that only reads, as `holdfast_reader` where the roles exist."""
    settings = {**READER_SETTINGS, **({"role": READER} if roles_exist(url) else {})}
    return " ".join(f"-c {name}={value}" for name, value in settings.items())


def create_user(url: str, name: str, role: Role, password: str, tenants: Sequence[str] = ()) -> None:
    """A login role with that password; with `tenants` a reader of their rows alone."""
    group = SERVER if role == "server" else TENANT_READER if tenants else READER
    with _owner(url) as connection, connection.transaction():
        encrypted = _encrypted(connection, name, password)
        try:
            _execute(connection, "create role {} login password {} in role {}", name, encrypted, group)
        except DuplicateObject:
            raise ConfigError(f"There is a role {name!r} already.") from None
        if role == "reader":
            _execute(
                connection, "alter role {} connection limit {}", name, sql.Literal(MAX_READER_CONNECTIONS)
            )
            for setting, value in READER_SETTINGS.items():
                _execute(connection, "alter role {} set {} = {}", name, setting, sql.Literal(value))
        for tenant in tenants:
            connection.execute("insert into reader_tenants (tenant, role) values (%s, %s)", [tenant, name])


def set_password(url: str, name: str, password: str) -> None:
    """Gives a user of `create_user` that password; its sessions go on."""
    with _owner(url) as connection:
        _execute(connection, "alter role {} password {}", name, _encrypted(connection, name, password))


def _encrypted(connection: psycopg.Connection, name: str, password: str) -> sql.Literal:
    """The password as the server stores it, so that no log of statements has it."""
    encrypted = connection.pgconn.encrypt_password(password.encode(), name.encode(), b"scram-sha-256")
    return sql.Literal(encrypted.decode())


def _execute(
    connection: psycopg.Connection, statement: LiteralString, *parts: sql.Composable | str
) -> psycopg.Cursor:
    """Executes a statement with names, which are text, and other parts in its places."""
    named = [sql.Identifier(part) if isinstance(part, str) else part for part in parts]
    return connection.execute(sql.SQL(statement).format(*named))


def has_user(url: str, name: str) -> bool:
    """Whether there is a role with that name that can log in."""
    with _owner(url) as connection:
        query = "select 1 from pg_roles where rolname = %s and rolcanlogin"
        return connection.execute(query, [name]).rowcount > 0


def create_embedded_reader(url: str, name: str) -> None:
    """A reader of an embedded database, whose owner is a superuser, with a bound on its temporary files."""
    if not roles_exist(url):
        create_roles(url)
    create_user(url, name, "reader", secrets.token_urlsafe(32))
    with _owner(url) as connection:
        limit = sql.Literal(TEMPORARY_FILES_OF_READER)
        _execute(connection, "alter role {} set temp_file_limit = {}", name, limit)


def drop_user(url: str, name: str) -> bool:
    """Removes the user; returns whether its sessions could be ended, too. Raises ConfigError if `create_user`
    did not make it in this database.
    """
    if all(user.name != name for user in list_users(url)):
        raise ConfigError(f"There is no user {name!r} of this database; `holdfast db users` shows them.")
    sessions = "select pg_terminate_backend(pid) from pg_stat_activity where usename = %s"
    with _owner(url) as connection, connection.transaction():
        try:
            with connection.transaction():
                connection.execute(sessions, [name])
            ended = True
        except InsufficientPrivilege:
            ended = False
        connection.execute("delete from reader_tenants where role = %s", [name])
        _execute(connection, "drop role {}", name)
    return ended


def list_users(url: str) -> list[DatabaseUser]:
    """The members of the three roles, by name."""
    query = """
        select m.rolname, g.rolname,
               array(select tenant from reader_tenants t where t.role = m.rolname order by 1)
        from pg_auth_members a join pg_roles m on m.oid = a.member join pg_roles g on g.oid = a.roleid
        where g.rolname = any(%s) and m.rolcanlogin and m.rolname <> current_user order by 1
    """
    with _owner(url) as connection:
        rows = connection.execute(query, [list(ROLES)]).fetchall()
    return [
        DatabaseUser(name, "server" if group == SERVER else "reader", tuple(tenants))
        for name, group, tenants in rows
    ]


@contextmanager
def _owner(url: str) -> Iterator[psycopg.Connection]:
    """A session of the schema's owner. Errors of the database are raised as ConfigError."""
    try:
        with psycopg.connect(with_network_timeouts(url), autocommit=True) as connection:
            yield connection
    except InsufficientPrivilege as error:
        raise ConfigError(
            f"The role of the database URL may not do this: {error.diag.message_primary}. It must own the"
            " tables, and needs CREATEROLE to make roles."
        ) from error
    except (psycopg.Error, DatabaseError) as error:
        raise ConfigError(f"The database refused: {first_line(error)}") from error


def _create_group(connection: psycopg.Connection, role: str) -> None:
    if connection.execute("select 1 from pg_roles where rolname = %s", [role]).rowcount == 0:
        with suppress(DuplicateObject, UniqueViolation):  # another database of the cluster was first
            _execute(connection, "create role {} nologin", role)
    _execute(connection, "grant usage on schema public to {}", role)


def _grant(connection: psycopg.Connection, table: Table) -> None:
    if table.name in READ_ONLY:
        changes = sql.SQL("select")
    else:
        changes = sql.SQL("select, insert" if table.name in APPEND_ONLY else "select, insert, update, delete")
    _execute(connection, "grant {} on {} to {}", changes, table.name, SERVER)
    if table.name in HIDDEN_TABLES:
        return
    shown = [column.name for column in table.columns if column.name not in HIDDEN_COLUMNS.get(table.name, ())]
    names = sql.SQL(", ").join(sql.Identifier(name) for name in shown)
    of_a_tenant = "tenant" in table.columns and table.name not in COPIED_INTO
    for_tenants = of_a_tenant or table.name in OF_NO_TENANT
    for role in (READER, TENANT_READER) if for_tenants else (READER,):
        _execute(connection, "grant select ({}) on {} to {}", names, table.name, role)


def _secure_rows(connection: psycopg.Connection, table: str) -> None:
    """Row-level security with a policy for each role. Locks the table only where something is missing."""
    own = sql.SQL("role = current_user") if table == "reader_tenants" else sql.SQL("tenant in ") + _READABLE
    anything = sql.SQL("true")
    policies = ((SERVER, "all", anything), (READER, "select", anything), (TENANT_READER, "select", own))
    rows = connection.execute("select policyname from pg_policies where tablename = %s", [table]).fetchall()
    for role, command, condition in policies:
        if (role,) not in rows:
            policy: LiteralString = "create policy {0} on {1} for {2} to {0} using ({3})"
            _execute(connection, policy, role, table, sql.SQL(command), condition)
    enabled = connection.execute("select relrowsecurity from pg_class where oid = %s::regclass", [table])
    if enabled.fetchone() == (False,):
        _execute(connection, "alter table {} enable row level security", table)


def _grant_views(connection: psycopg.Connection) -> None:
    grant: LiteralString = "grant select on {} to {}"
    _execute(connection, grant, "alembic_version", SERVER)
    for view in VIEWS:
        for role in (SERVER, READER):
            _execute(connection, grant, view, role)
    for role in ROLES:
        _execute(connection, "grant usage on schema admin to {}", role)
    for (view,) in connection.execute(_ADMIN_VIEWS).fetchall():
        for role in (SERVER, READER) if view in NOT_FOR_TENANTS else ROLES:
            _execute(connection, grant, sql.Identifier("admin", view), role)
    for view, source in TENANT_VIEWS.items():
        _execute(connection, _CREATE_TENANT_VIEW, view, source, _READABLE)
        _execute(connection, grant, view, TENANT_READER)


def _grant_functions(connection: psycopg.Connection) -> None:
    """Functions with the owner's rights, by which a server makes and removes partitions."""
    ours = r"select oid::regprocedure::text from pg_proc where prosecdef and proname like 'holdfast\_%'"
    for (function,) in connection.execute(ours).fetchall():
        _execute(connection, "grant execute on function {} to {}", sql.SQL(function), SERVER)
