"""Database roles: a server without DDL, people who only read, and readers of one tenant."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from openai import OpenAI
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.errors import (
    InsufficientPrivilege,
    ObjectNotInPrerequisiteState,
    ReadOnlySqlTransaction,
    UndefinedColumn,
)

from server.store.database_roles import (
    COPIED_INTO,
    HIDDEN_TABLES,
    NOT_FOR_TENANTS,
    READ_ONLY,
    READER,
    READER_SETTINGS,
    SERVER,
    TENANT_READER,
    TENANT_VIEWS,
)
from server.store.tables import ALL_TABLES
from tests.fix_server import SCRIPTED
from tests.support.documents import sql_lines
from tests.support.invariants import check
from tests.support.server_process import MODEL, ServerProcess, run_command

ADMIN_LINES = [line.replace("resp_…", "resp_" + 32 * "0") for _, line in sql_lines()]
_STORED_PASSWORD = "select rolpassword from pg_authid where rolname = %s"
TENANT_TABLES = {name for name, table in ALL_TABLES.tables.items() if "tenant" in table.columns}


@dataclass(frozen=True)
class Users:
    owner: str
    server: str
    reader: str
    acme_reader: str


@pytest.fixture(scope="module")
def users(module_database: str) -> Iterator[Users]:
    """URLs of one database as its owner, as a server, as a reader, and as a reader of the tenant acme.

    The tests share it: what they try to change they may not, and what the owner adds is none of the others'.
    """
    database_url = module_database
    assert run_command("db", "roles", database_url=database_url).returncode == 0
    names = {"server": ["server"], "reader": ["reader"], "acme": ["reader", "--tenant", "acme"]}
    database = conninfo_to_dict(database_url)["dbname"]
    urls = {}
    for name, options in names.items():
        user = f"{name}_of_{database}"
        made = run_command("db", "create-user", user, "--as", *options, database_url=database_url)
        assert (made.returncode, len(made.stdout.strip())) == (0, 32), made.stderr
        urls[name] = make_conninfo(database_url, user=user, password=made.stdout.strip())
    yield Users(database_url, urls["server"], urls["reader"], urls["acme"])
    for name in names:
        gone = run_command("db", "drop-user", f"{name}_of_{database}", database_url=database_url)
        assert gone.returncode == 0, gone.stderr


@pytest.fixture(scope="module")
def served(users: Users) -> Iterator[ServerProcess]:
    """A server that is no owner, with responses of two tenants."""
    server = ServerProcess(_url(users.server), settings=SCRIPTED)
    server.start()
    for tenant in ("acme", "other"):
        made = run_command("keys", "create", "--tenant", tenant, database_url=users.owner)
        with OpenAI(base_url=server.api, api_key=made.stdout.strip(), max_retries=0) as client:
            client.responses.create(model=MODEL, input=f"Words of {tenant}", metadata={"of": tenant})
            with client.responses.create(model=MODEL, input="Hello", stream=True, background=True) as stream:
                assert [event.type for event in stream][-1] == "response.completed"
            conversation = client.conversations.create()
            answer = client.responses.create(model=MODEL, input="Hello", conversation=conversation.id)
            client.responses.delete(answer.id)
            client.responses.create(model=MODEL, input="Hello", store=False)
    yield server
    server.stop()
    check(users.owner)


def test_a_server_without_ddl_serves_everything(served: ServerProcess, users: Users) -> None:
    with psycopg.connect(users.owner) as connection:
        ended = connection.execute("select distinct status from responses").fetchall()
        metered = connection.execute(
            "select tenant, count(*) from usage_ledger group by 1 order by 1"
        ).fetchall()
    assert ended == [("completed",)]
    assert metered == [("acme", 4), ("other", 4)]


@pytest.mark.parametrize(
    "statement",
    [
        "create table t (a int)",
        "alter table responses add column a int",
        "drop table items",
        "truncate responses",
        "alter table responses disable row level security",
        "delete from audit_trail",
        "update audit_trail set actor = 'nobody'",
        "select * from reader_tenants; drop view v_events",
    ],
)
def test_a_server_user_changes_no_schema_and_no_audit_trail(users: Users, statement: str) -> None:
    with psycopg.connect(users.server) as connection, pytest.raises(InsufficientPrivilege):
        connection.execute(statement)


def test_a_reader_reads_every_tenant_and_no_secret(served: ServerProcess, users: Users) -> None:
    with psycopg.connect(users.reader, autocommit=True) as connection:
        tenants = connection.execute("select distinct tenant from responses order by 1").fetchall()
        events = connection.execute("select count(*) > 0 from v_events where tenant = 'other'").fetchone()
        assert (tenants, events) == ([("acme",), ("other",)], (True,))
        for query in ("select digest from api_keys", "select * from api_keys", "select * from seal_keys"):
            with pytest.raises(InsufficientPrivilege):
                connection.execute(query)
        for name, value in READER_SETTINGS.items():
            shown = connection.execute(sql.SQL("show {}").format(sql.SQL(name))).fetchone()
            assert shown in ((value,), ("1min",) if value == "60s" else (value,))


def test_a_reader_writes_nothing_even_in_a_transaction_that_may(users: Users) -> None:
    for url in (users.reader, users.acme_reader):
        with psycopg.connect(url, autocommit=True) as connection:
            with pytest.raises(ReadOnlySqlTransaction):
                connection.execute("delete from responses")
            connection.execute("set default_transaction_read_only = off")
            for table in sorted(ALL_TABLES.tables):
                with pytest.raises(InsufficientPrivilege):
                    connection.execute(sql.SQL("delete from {}").format(sql.Identifier(table)))
            with pytest.raises(InsufficientPrivilege):
                connection.execute("create table t (a int)")


def test_a_tenants_reader_sees_its_rows_alone(served: ServerProcess, users: Users) -> None:
    with psycopg.connect(users.owner) as owner:
        filled = {
            table
            for table in TENANT_TABLES - COPIED_INTO
            if owner.execute(
                sql.SQL("select 1 from {} where tenant <> 'acme' limit 1").format(sql.Identifier(table))
            ).fetchone()
        }
    assert filled >= {"responses", "items", "conversations", "usage_ledger", "api_keys", "response_streams"}
    with psycopg.connect(users.acme_reader, autocommit=True) as connection:
        for table in sorted(TENANT_TABLES - COPIED_INTO):
            query = sql.SQL("select distinct tenant from {}").format(sql.Identifier(table))
            assert set(connection.execute(query)) <= {("acme",)}, table
        for view in TENANT_VIEWS:
            query = sql.SQL("select distinct tenant from {}").format(sql.Identifier(view))
            assert set(connection.execute(query)) <= {("acme",)}
        assert connection.execute("select count(*) > 0 from v_tenant_events").fetchone() == (True,)
        for hidden in (*COPIED_INTO, *HIDDEN_TABLES, "v_events", "v_images", "replicas"):
            with pytest.raises(InsufficientPrivilege):
                connection.execute(sql.SQL("select 1 from {}").format(sql.Identifier(hidden)))
        connection.execute("set default_transaction_read_only = off")
        with pytest.raises(InsufficientPrivilege):
            connection.execute("insert into reader_tenants values ('other', current_user)")


@pytest.mark.parametrize("line", ADMIN_LINES)
def test_readers_ask_every_question_of_the_page(users: Users, line: str) -> None:
    with psycopg.connect(users.reader, autocommit=True) as connection:
        connection.execute(line.encode())


def test_a_tenants_reader_asks_the_same_views_and_sees_its_rows_alone(
    served: ServerProcess, users: Users
) -> None:
    served.ask_to_end()
    assert served.wait() == 0
    served.start()
    with psycopg.connect(users.owner, autocommit=True) as owner:
        owner.execute(
            "insert into user_days select tenant, 'u', '2026-1-1', 1, 1, 1, 1, 1, 1, 1 from api_keys"
        )
        owner.execute("insert into refused_requests select tenant, now(), '', 400, '', 1 from api_keys")
        owner.execute("insert into refused_requests values ('', now(), '', 401, '', 1)")
        owner.execute("insert into refused_keys select tenant, now(), id, 400, '', 1 from api_keys")
        owner.execute("insert into storage_days select distinct tenant, date '2026-1-1', 1, 0 from api_keys")
        views = owner.execute(
            "select table_name, bool_or(column_name = 'tenant') from information_schema.columns"
            " where table_schema = 'admin' group by 1"
        ).fetchall()
        of_tenants = {view for view, has_tenant in views if has_tenant} - NOT_FOR_TENANTS
        assert {view for view, _ in views} - of_tenants == NOT_FOR_TENANTS
        shown = {view: _tenants(owner, view) for view in of_tenants}
    lacking = {view for view, tenants in shown.items() if not tenants >= {"acme", "other"}}
    assert lacking <= {"tool_calls"}, shown
    with psycopg.connect(users.acme_reader, autocommit=True) as connection:
        for view in sorted(of_tenants):
            assert _tenants(connection, view) == shown[view] & {"acme"}, view
        (found,) = connection.execute("select id from admin.responses limit 1").fetchall()
        assert connection.execute(
            "select count(*) from admin.chain(admin.name_of('resp_', %s))", found
        ).fetchone()
        for view in NOT_FOR_TENANTS:
            with pytest.raises(InsufficientPrivilege):
                connection.execute(sql.SQL("select from {}").format(sql.Identifier("admin", view)))


def _tenants(connection: psycopg.Connection, view: str) -> set[str | None]:
    query = sql.SQL("select distinct tenant from {}").format(sql.Identifier("admin", view))
    return {tenant for (tenant,) in connection.execute(query)}


def test_readers_change_nothing_through_the_views(users: Users) -> None:
    for url in (users.reader, users.acme_reader):
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("set default_transaction_read_only = off")
            for statement in (
                "delete from admin.items",
                "update admin.usage set cost = 0",
                "create view admin.mine as select 1",
                "drop view admin.items",
                "select digest from admin.keys",
            ):
                with pytest.raises((InsufficientPrivilege, ObjectNotInPrerequisiteState, UndefinedColumn)):
                    connection.execute(statement.encode())


def test_every_table_has_its_rights_and_its_policies(users: Users) -> None:
    with psycopg.connect(users.owner) as owner:
        for table in ALL_TABLES.tables:
            may = owner.execute("select has_table_privilege(%s, %s, 'insert')", [SERVER, table]).fetchone()
            assert may == (table not in READ_ONLY,), table
        secured = owner.execute("select relname from pg_class where relrowsecurity").fetchall()
        policies = owner.execute(
            "select tablename, array_agg(policyname::text order by 1) from pg_policies group by 1"
        )
        assert {name for (name,) in secured} == TENANT_TABLES - COPIED_INTO
        roles = sorted((SERVER, READER, TENANT_READER))
        assert {table: sorted(names) for table, names in policies} == dict.fromkeys(
            TENANT_TABLES - COPIED_INTO, roles
        )


def test_making_the_roles_again_changes_nothing_and_waits_for_nobody(users: Users) -> None:
    with psycopg.connect(users.owner) as reading:
        reading.execute("select 1 from responses")  # an open transaction, as pg_dump has one
        again = run_command("db", "roles", database_url=users.owner)
        assert again.returncode == 0, again.stderr


def test_users_are_listed_with_the_tenants_that_they_see(users: Users) -> None:
    database = conninfo_to_dict(users.owner)["dbname"]
    listed = run_command("db", "users", database_url=users.owner)
    ours = [
        line.split("\t")
        for line in listed.stdout.splitlines()
        if line.split("\t")[0].endswith(f"_{database}")
    ]
    assert ours == [
        [f"acme_of_{database}", "reader", "acme"],
        [f"reader_of_{database}", "reader", "all tenants"],
        [f"server_of_{database}", "server", "all tenants"],
    ]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["create-user", "Bobby; drop", "--as", "reader"], "A user's name is"),
        (["create-user", "bobby", "--as", "server", "--tenant", "acme"], "A server serves all tenants"),
        (["create-user", "bobby", "--as", "reader", "--tenant", "A B"], "is not a tenant's name"),
        (["create-user", "bobby", "--as", "reader"], "run: holdfast db roles"),
        (["drop-user", "postgres"], "There is no user 'postgres'"),
    ],
)
def test_mistakes_are_answered_with_a_sentence(
    database_url: str, arguments: list[str], sentence: str
) -> None:
    answered = run_command("db", *arguments, database_url=database_url)
    assert answered.returncode == 1
    assert sentence in answered.stderr
    assert "Traceback" not in answered.stderr


def test_a_password_file_is_made_once_and_what_it_says_is_the_users_password_again_and_again(
    users: Users, tmp_path: Path
) -> None:
    user, passfile = f"passfile_of_{conninfo_to_dict(users.owner)['dbname']}", tmp_path / "pgpass"
    command = ("db", "create-user", user, "--as", "server", "--passfile", str(passfile))
    with_passfile = make_conninfo(users.owner, user=user, password="", passfile=str(passfile))
    replaced: list[tuple[object, ...]] = []
    try:
        for _ in range(2):
            made = run_command(*command, database_url=users.owner)
            assert (made.returncode, made.stdout) == (0, ""), made.stderr
            line = passfile.read_text()
            with psycopg.connect(with_passfile) as connection:
                assert connection.execute("select current_user").fetchone() == (user,)
            assert (line, passfile.stat().st_mode & 0o777) == (passfile.read_text(), 0o600)
            with psycopg.connect(users.owner) as connection:
                (stored,) = connection.execute(_STORED_PASSWORD, [user]).fetchall()
                assert stored not in replaced
                connection.execute(f"alter role {user} password 'another'")
                replaced += connection.execute(_STORED_PASSWORD, [user]).fetchall()
        assert os.listdir(tmp_path) == [passfile.name]
        for arguments, content, sentence in (
            (command, "*:*:*:nobody:a\n", "has another content than a password of"),
            ((*command[:4], "reader", *command[5:]), line, "There is a role"),
            ((*command[:6], str(tmp_path / "no" / "folder")), line, "cannot be written"),
        ):
            passfile.write_text(content)
            refused = run_command(*arguments, database_url=users.owner)
            assert (refused.returncode, sentence in refused.stderr) == (1, True), refused.stderr
    finally:
        run_command("db", "drop-user", user, database_url=users.owner)


def test_a_user_without_the_right_is_told_so(users: Users) -> None:
    for arguments in (["roles"], ["create-user", "bobby", "--as", "reader"]):
        answered = run_command("db", *arguments, database_url=_url(users.server))
        assert answered.returncode == 1
        assert "The role of the database URL may not do this" in answered.stderr


def test_psql_only_reads_unless_it_is_asked_to_write(users: Users) -> None:
    delete = ["-c", "delete from prompts"]
    refused = run_command("psql", *delete, database_url=users.owner)
    assert (refused.returncode, "read-only transaction" in refused.stderr) == (1, True)
    secret = run_command("psql", "-c", "select key from seal_keys", database_url=users.owner)
    assert (secret.returncode, "permission denied" in secret.stderr) == (1, True)
    assert run_command("psql", "--write", *delete, database_url=users.owner).returncode == 0


def _url(conninfo: str) -> str:
    """The URL of a libpq string."""
    parts = {name: str(value) for name, value in conninfo_to_dict(conninfo).items()}
    user, password, host = parts["user"], parts["password"], parts["host"]
    return f"postgresql://{user}:{password}@/{parts['dbname']}?host={host}"
