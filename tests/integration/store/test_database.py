import json
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from sqlalchemy import text

from server.embedded_postgres.embedded_server import EmbeddedPostgres
from server.protocol.ids import new_uuid
from server.store import arrays
from server.store import database as database_module
from server.store.database import Connection, Database, clock, commit_synchronously
from server.store.database_errors import AlreadyThere, DatabaseError
from server.store.driver_statements import execute, execute_later, psycopg_connection


@pytest.fixture
def normal(database_url: str) -> Iterator[Database]:
    opened = Database(database_url, pool_size=1, strict=False)
    yield opened
    opened.close()


@pytest.fixture
def careless_url(cluster: EmbeddedPostgres, database_url: str) -> Iterator[str]:
    """The database as a role whose commits do not wait for the disk by default."""
    with psycopg.connect(database_url, autocommit=True) as administrator:
        administrator.execute("create role careless login superuser")
        administrator.execute("alter role careless set synchronous_commit = off")
    yield make_conninfo(database_url, user="careless")
    with psycopg.connect(cluster.url_of("postgres"), autocommit=True) as administrator:
        administrator.execute("drop role careless")


def show(connection: Connection, setting: str) -> str:
    found: str = connection.exec_driver_sql(f"show {setting}").scalar_one()
    return found


def test_a_transaction_that_raises_leaves_nothing(database: Database) -> None:
    def insert_and_raise() -> None:
        with database.begin() as connection:
            connection.execute(
                text("insert into conversations values ('t', gen_random_uuid(), '{}', now(), 0, 2)")
            )
            raise RuntimeError

    with pytest.raises(RuntimeError):
        insert_and_raise()
    with database.begin() as connection:
        assert connection.execute(text("select 1 from conversations")).first() is None


def test_every_session_has_time_limits(database: Database) -> None:
    own = database.dedicated_connection("test")
    with database.begin() as connection:
        limits = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
        assert "0" not in [show(connection, limit) for limit in limits]
        assert "0" not in [show(own, limit) for limit in limits]
        assert show(own, "application_name") == "holdfast test"
    own.close()


def commits_of_each(database: Database) -> set[str]:
    """`synchronous_commit` of each kind of transaction."""
    pooled = [
        work(lambda connection: show(connection, "synchronous_commit"))
        for work in (database.retry, database.read, database.autocommit)
    ]
    with closing(database.dedicated_connection("test")) as own, own.begin():
        return {*pooled, show(own, "synchronous_commit")}


@pytest.mark.parametrize("pooled", [False, True])
def test_commits_wait_for_the_disk_though_the_role_says_that_they_need_not(
    careless_url: str, pooled: bool
) -> None:
    with psycopg.connect(careless_url) as connection:
        assert connection.execute("show synchronous_commit").fetchone() == ("off",)
    with closing(Database(careless_url, pool_size=1, pooled=pooled)) as database:
        assert commits_of_each(database) == {"on"}


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ("-c work_mem=8MB -c synchronous_commit=off", "off"),
        ("-csynchronous_commit=remote_apply", "remote_apply"),
        ("--synchronous-commit=local", "local"),
    ],
)
def test_the_url_may_say_for_what_commits_wait(database_url: str, options: str, value: str) -> None:
    with closing(Database(make_conninfo(database_url, options=options), pool_size=1)) as database:
        assert commits_of_each(database) == {value}


def test_a_commit_that_must_wait_for_the_disk_weakens_no_setting(database_url: str) -> None:
    url = make_conninfo(database_url, options="-c synchronous_commit=remote_apply")
    with closing(Database(url, pool_size=1)) as database, database.begin() as connection:
        commit_synchronously(connection)
        assert show(connection, "synchronous_commit") == "remote_apply"


def test_a_dedicated_connection_of_a_database_that_is_not_strict_waits_where_it_says_so(
    normal: Database,
) -> None:
    own = normal.dedicated_connection("test")
    with own.begin():
        assert show(own, "synchronous_commit") == "off"
        commit_synchronously(own)
        assert show(own, "synchronous_commit") == "on"
    with own.begin():
        assert show(own, "synchronous_commit") == "off"
    own.close()
    assert normal.scalar("select current_setting('synchronous_commit')") == "on"


def test_a_pooled_connection_that_was_killed_is_replaced(database: Database, database_url: str) -> None:
    with database.begin() as connection:
        pid = connection.exec_driver_sql("select pg_backend_pid()").scalar_one()
    with psycopg.connect(database_url, autocommit=True) as administrator:
        administrator.execute("select pg_terminate_backend(%s, 5000)", (pid,))
    with database.begin() as connection:
        assert connection.exec_driver_sql("select pg_backend_pid()").scalar_one() != pid


def test_what_is_read_is_of_one_moment_and_cannot_be_changed(database: Database) -> None:
    moments = "select transaction_timestamp(), current_setting('transaction_isolation')"

    def work(connection: Connection) -> list[tuple[object, object]]:
        return [tuple(connection.exec_driver_sql(moments).one()) for _ in range(2)]

    (before, level), after = database.read(work)
    assert (before, level) == after
    assert level == "repeatable read"
    with pytest.raises(DatabaseError, match="read-only"):
        database.read(lambda connection: connection.exec_driver_sql("create table made (one int)"))


def test_what_is_asked_has_no_transaction_and_leaves_none(database: Database) -> None:
    moment = "select transaction_timestamp(), pg_backend_pid()"

    def work(connection: Connection) -> list[tuple[object, object]]:
        return [tuple(connection.exec_driver_sql(moment).one()) for _ in range(2)]

    (before, one), (after, other) = database.autocommit(work)
    assert before < after  # type: ignore[operator]
    assert one == other
    with database.begin() as connection:  # the same connection, which has transactions again
        assert connection.exec_driver_sql("select pg_backend_pid()").scalar_one() == one
        assert len({clock(connection) for _ in range(2)}) == 2
        assert len({connection.exec_driver_sql("select now()").scalar_one() for _ in range(2)}) == 1


@pytest.mark.parametrize("pooled", [False, True])
def test_a_statement_alone_is_a_transaction_and_leaves_none(database_url: str, pooled: bool) -> None:
    opened = Database(database_url, pool_size=1, pooled=pooled)
    insert = (
        "insert into conversations (tenant, id, metadata, size) values ($1, $2, cast($3 as json), 9)"
        " returning tenant"
    )
    values = ('it\'s \\ "t"', new_uuid(), '{"a": "é"}')
    assert opened.scalar(insert, values) == values[0]
    with pytest.raises(AlreadyThere):
        opened.scalar(insert, values)
    with opened.begin() as connection:
        own = "select metadata, now() <> statement_timestamp() from conversations where tenant = %s"
        assert connection.exec_driver_sql(own, (values[0],)).all() == [(values[2], True)]
    assert opened.scalar("select sum(n) from unnest($1::int[]) as n", (arrays.literal([1, 2, 3]),)) == 6
    opened.close()


def test_a_statement_alone_is_prepared_again_where_the_server_has_forgotten_it(database: Database) -> None:
    backend = database.scalar("select pg_backend_pid()")
    with database.begin() as connection:
        connection.exec_driver_sql("deallocate all")
    assert database.scalar("select pg_backend_pid()") == backend


def test_a_statement_alone_is_prepared_again_after_a_change_of_its_table(database: Database) -> None:
    with database.begin() as connection:
        connection.exec_driver_sql("create table made (value) as select 1")
    assert database.rows("select * from made") == [(1,)]
    with database.begin() as connection:
        connection.exec_driver_sql("alter table made alter value type text")
    assert database.rows("select * from made") == [("1",)]


def test_a_statement_alone_is_repeated_on_another_connection_where_its_own_is_lost(
    database: Database, database_url: str
) -> None:
    lost = database.scalar("select pg_backend_pid()")
    with psycopg.connect(database_url) as other:
        other.execute("select pg_terminate_backend(%s, 5000)", (lost,))
    assert database.scalar("select pg_backend_pid()") != lost
    with pytest.raises(DatabaseError):
        database.scalar("select pg_backend_pid() from nowhere")
    assert database.scalar("select 1") == 1


def test_what_a_statement_alone_breaks_at_its_commit_is_a_database_error(database: Database) -> None:
    with database.begin() as connection:
        connection.exec_driver_sql("create table firsts (id int primary key)")
        connection.exec_driver_sql(
            "create table seconds (id int references firsts deferrable initially deferred)"
        )
    backend = database.scalar("select pg_backend_pid()")
    with pytest.raises(AlreadyThere, match="seconds"):
        database.scalar("insert into seconds values ($1::int) returning id", (1,))
    assert database.scalar("select count(*) from seconds") == 0
    assert database.scalar("select pg_backend_pid()") == backend


def test_a_statement_alone_is_repeated_after_its_commit_failed_for_another_one(database: Database) -> None:
    with database.begin() as connection:
        connection.exec_driver_sql("create table made (id int)")
        connection.exec_driver_sql("create sequence tries")  # which no rollback sets back
        connection.exec_driver_sql(
            "create function fail_once() returns trigger language plpgsql as $$ begin"
            " if nextval('tries') = 1 then raise sqlstate '40001'; end if; return null; end $$"
        )
        connection.exec_driver_sql(
            "create constraint trigger fail_once after insert on made deferrable initially deferred"
            " for each row execute function fail_once()"
        )
    assert database.scalar("insert into made values ($1::int) returning id", (1,)) == 1
    assert database.scalar("select last_value from tries") == 2
    assert database.scalar("select count(*) from made") == 1


def test_a_statement_that_cannot_be_prepared_leaves_its_connection_usable(database: Database) -> None:
    backend = database.scalar("select pg_backend_pid()")
    for _ in range(2):
        with pytest.raises(DatabaseError, match="nowhere"):
            database.scalar("select 1 from nowhere")
    assert database.scalar("select pg_backend_pid()") == backend


MAKE = ("insert into made values ($1::int)", ("value",))


@pytest.fixture(params=[False, True])
def made(database_url: str, request: pytest.FixtureRequest) -> Iterator[Database]:
    """A database with a table of numbers, each at most once, also through a pooler."""
    with closing(Database(database_url, pool_size=1, pooled=request.param)) as opened:
        with opened.begin() as connection:
            connection.exec_driver_sql("create table made (value int primary key)")
        yield opened


def make(database: Database, *values: int, last: bool = False) -> None:
    """Inserts the values in one transaction, all but the last one later, and that too without `last`."""
    with database.begin() as connection:
        for value in values[: -1 if last else None]:
            execute_later(connection, MAKE, {"value": value})
        if last:
            execute(connection, MAKE, {"value": values[-1]})


def test_statements_that_are_sent_later_are_executed_in_their_order_and_with_the_commit(
    made: Database,
) -> None:
    for first in (0, 10):
        with made.begin() as connection:
            for value in (first, first + 1, first + 2):
                execute_later(connection, MAKE, {"value": value})
            assert connection.exec_driver_sql("select max(value) from made").scalar_one() == first + 2
            execute_later(connection, MAKE, {"value": first + 3})
            execute(connection, ("delete from made where value = $1", ("value",)), {"value": first + 3})
            commit_synchronously(connection)
            execute_later(connection, MAKE, {"value": first + 4})
    assert made.scalar("select array_agg(value order by value) from made") == [0, 1, 2, 4, 10, 11, 12, 14]


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("values", [(7, 7), (7, 1, 7), (7, 7, 1)])
def test_a_statement_that_is_sent_later_and_fails_undoes_its_transaction_and_leaves_the_connection_usable(
    made: Database, values: tuple[int, ...], last: bool
) -> None:
    backend = made.scalar("select pg_backend_pid()")
    for _ in range(2):
        with pytest.raises(AlreadyThere):
            make(made, *values, last=last)
    assert made.scalar("select count(*) from made") == 0
    assert made.scalar("select pg_backend_pid()") == backend


def test_what_was_to_be_sent_later_is_dropped_with_its_transaction(made: Database) -> None:
    with made.begin() as connection:
        execute(connection, MAKE, {"value": 1})
        execute_later(connection, MAKE, {"value": 2})
        connection.rollback()
    assert made.scalar("select count(*) from made") == 0


def make_twice(connection: Connection) -> None:
    with connection.begin():
        execute(connection, MAKE, {"value": 1})
        execute_later(connection, MAKE, {"value": 1})


def test_a_commit_that_fails_for_what_was_sent_with_it_ends_the_transaction(made: Database) -> None:
    with made.dedicated_connection("test") as connection:
        with pytest.raises(AlreadyThere):
            make_twice(connection)
        with connection.begin():
            execute(connection, MAKE, {"value": 2})
    assert made.scalar("select array_agg(value) from made") == [2]


def test_a_value_that_cannot_be_sent_is_refused_at_once_and_takes_nothing_with_it(made: Database) -> None:
    with made.begin() as connection:
        execute(connection, MAKE, {"value": 1})
        execute_later(connection, MAKE, {"value": 2})
        for send in (execute_later, execute):
            with pytest.raises(DatabaseError, match="NUL"):
                send(connection, ("select $1::text", ("value",)), {"value": "nul\0"})
    assert made.scalar("select array_agg(value order by value) from made") == [1, 2]


def test_each_statement_of_one_exchange_has_the_connections_timeout(database: Database) -> None:
    with database.begin() as connection, psycopg_connection(connection) as raw:
        raw.timeout_seconds = 2.0
        raw.run("select 1")
        raw.later("select pg_sleep($1)", (1.2,))
        assert raw.run("select pg_sleep($1)::text || 'awake'", (1.2,)) == [("awake",)]
        del raw.timeout_seconds


def test_strings_of_an_array_arrive_as_they_are(database: Database) -> None:
    texts = ["", "NULL", None, 'a "b" \\ {c}, d', "\n\x1e"]
    found = database.scalar("select to_json($1::text[])::text", (arrays.literal(texts),))
    assert json.loads(found) == texts


def test_a_database_that_is_not_there_is_a_database_error() -> None:
    absent = Database("postgresql:///?host=/nowhere", pool_size=1)
    absent.outage.report_failure(0.0)  # which has lasted, so nothing is tried again
    with pytest.raises(DatabaseError), absent.begin():
        pass
    with pytest.raises(DatabaseError):
        absent.scalar("select 1")
    with pytest.raises(DatabaseError):
        absent.dedicated_connection("test")


def test_an_error_of_the_driver_is_a_database_error(database: Database) -> None:
    with database.begin() as connection:
        before = clock(connection)
    with pytest.raises(DatabaseError), database.begin() as connection, psycopg_connection(connection) as raw:
        raw.execute("select nonsense")
    with database.begin() as connection:
        assert clock(connection) > before


def test_json_comes_back_as_the_text_that_it_was(database: Database) -> None:
    with database.begin() as connection:
        found = connection.execute(text("""select '{"b": 1e2,  "a": "\\u0000"}'::json""")).scalar_one()
    assert found == '{"b": 1e2,  "a": "\\u0000"}'


def test_times_that_python_does_not_have_are_read_as_very_late_or_early_ones(database: Database) -> None:
    with database.begin() as connection:
        found = connection.exec_driver_sql(
            "select 'infinity'::timestamptz, '-infinity'::timestamptz, '0044-03-15 BC'::timestamptz,"
            " '20000-01-01'::timestamptz, '2026-05-04T00:00:00Z'::timestamptz"
        ).one()
    first, last = datetime(2, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)
    assert tuple(found) == (last, first, first, last, datetime(2026, 5, 4, tzinfo=UTC))


def test_disk_that_was_full_a_moment_ago_counts_as_full_for_a_while(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_full() -> bool:
        return database.disk_is_full

    full = "do $$ begin raise exception 'no space left on device' using errcode = 'disk_full'; end $$"
    assert not is_full()
    with pytest.raises(DatabaseError), database.begin() as connection:
        connection.exec_driver_sql(full)
    assert is_full()
    monkeypatch.setattr(database_module, "_DISK_FULL_S", 0.0)
    assert not is_full()
