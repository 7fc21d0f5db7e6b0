"""The console's SQL page: what it answers, and what a query cannot do."""

import csv
import html
import io
import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from server.store.database_roles import create_roles, create_user
from tests.acceptance.console.console_client import Console
from tests.acceptance.console.console_site import Site, make_key
from tests.fix_server import SCRIPTED, StartServer
from tests.support.documents import sql_lines
from tests.support.server_process import ServerProcess

READER = "console_test_reader"


@pytest.fixture(scope="module")
def site(module_database: str) -> Iterator[Site]:
    """A server with a reader."""
    create_roles(module_database)
    create_user(module_database, READER, "reader", "secret")
    reader = module_database.replace("postgres@", f"{READER}@", 1)
    server = ServerProcess(module_database, settings={**SCRIPTED, "reader_database_url": reader})
    try:
        server.start()
        keys = [make_key(module_database, scopes, "ops") for scopes in ("admin,read,write", "metadata")]
        yield Site(server, module_database, *keys)
    finally:
        server.stop()
        with psycopg.connect(module_database) as connection:
            connection.execute(f"drop owned by {READER}".encode())
            connection.execute(f"drop role {READER}".encode())


@pytest.fixture
def console(site: Site) -> Iterator[Console]:
    with Console(site.server, site.admin_key) as session:
        session.get("/console/sql")
        yield session


def ask(console: Console, query: str, wish: str = "run") -> tuple[int, str]:
    """The status, and the sentence about the result or the mistake."""
    answer = console.post("/console/sql", {"query": query, "wish": wish})
    found = re.search(r'id="(?:query-error|outcome|plan)"[^>]*>([^<]*)<', answer.text)
    return answer.status_code, html.unescape(found[1] if found else answer.text)


def test_a_query_gives_a_table_in_which_values_are_escaped(console: Console) -> None:
    query = "select '<script>' as a, repeat('y', 5000) as b, null as c, 3 as n;"
    answer = console.post("/console/sql", {"query": query})
    assert answer.status_code == 200
    assert "<bdi>&lt;script&gt;</bdi>" in answer.text
    assert "y" * 200 + "</bdi>…" in answer.text
    assert "<small>null</small>" in answer.text
    assert '<td class="n"><bdi>3</bdi></td>' in answer.text
    assert query in html.unescape(answer.text)


def test_every_documented_question_is_answered(console: Console) -> None:
    page = html.unescape(console.get("/console/sql").text)
    assert "admin.usage_daily" in page
    for number, (title, query) in enumerate(sql_lines()):
        assert title in page
        assert query in html.unescape(console.get("/console/sql", question=str(number)).text)
        status, said = ask(console, query.replace("resp_…", "resp_" + 32 * "0"))
        assert status == 200, (title, said)


def test_a_result_is_drawn_as_a_chart(console: Console) -> None:
    query = "select current_date - g as day, g as n from generate_series(1, 3) g"
    found = re.search(r'data-chart="([^"]*)"', console.post("/console/sql", {"query": query}).text)
    assert found is not None
    assert '"series":[["n",[3.0,2.0,1.0]]]' in html.unescape(found[1])


def test_a_query_is_run_in_a_browser_which_draws_its_chart(browser: Any, site: Site) -> None:
    context = browser.new_context()
    said: list[str] = []
    url = site.server.url
    context.request.post(f"{url}/console/sign-in", form={"key": site.admin_key}, max_redirects=0)
    page = context.new_page()
    page.on("console", lambda message: said.append(message.text))
    page.goto(f"{url}/console/sql")
    page.fill("#query", "select current_date - g as day, g as n from generate_series(1, 3) g")
    page.click("text=Run")
    page.wait_for_selector("#chart canvas")
    assert page.locator("#result tbody tr").count() == 3
    assert "3 rows" in page.inner_text("#outcome")
    context.close()
    assert said == []


def test_a_result_comes_as_csv_without_formulas(console: Console) -> None:
    query = r"select '=1+1' as a, -5 as n, e'x\ny' as b"
    answer = console.post("/console/sql", {"query": query, "wish": "csv"})
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    rows = list(csv.reader(io.StringIO(answer.text)))
    assert rows == [["a", "n", "b"], ["'=1+1", "-5", "x\ny"]]


def test_a_plan_is_explained_and_nothing_is_run(console: Console) -> None:
    status, said = ask(console, "select pg_sleep(100)", "explain")
    assert (status, "Result" in said) == (200, True)


def test_every_query_is_in_the_audit_trail(console: Console, site: Site) -> None:
    ask(console, "select 'remember me'" + " " * 3000)
    ask(console, "delete from tenants")
    newest = "select details->>'query' from audit_trail where action = 'console.sql' order by at desc limit 2"
    (last,), (before,) = site.sql(newest)
    assert last == "delete from tenants"
    assert before == f"{'''select 'remember me' ''':2000}"


def test_a_metadata_key_does_not_see_the_page_nor_queries(site: Site, console: Console) -> None:
    ask(console, "select 'hidden words'")
    with Console(site.server, site.metadata_key) as other:
        assert other.get("/console/sql").status_code == 403
        trail = other.get("/console/trail", action="console.sql").text
    assert "console.sql" in trail
    assert "hidden words" not in trail


GIVES_NO_ROWS = "Write a query that gives rows"
WRITING = "select query_to_xml('{}', true, false, '')"
ATTACKS = {
    "insert into tenants (tenant) values ('x')": GIVES_NO_ROWS,
    "with gone as (delete from responses returning 1) select * from gone": "data-modifying",
    WRITING.format("delete from tenants"): "query_to_xml may do more",
    "select set_config('role', 'postgres', false)": "set_config may do more",
    "select set_config('statement_timeout', '0', false)": "set_config may do more",
    "set role postgres": GIVES_NO_ROWS,
    "copy (select 1) to program 'id'": GIVES_NO_ROWS,
    "select pg_read_file('/etc/passwd')": "pg_read_file may do more",
    "select lo_import('/etc/passwd')": "lo_import may do more",
    "select pg_terminate_backend(pid) from pg_stat_activity": "pg_terminate_backend may do more",
    "select digest from api_keys": "denied",
    "select secret, old_secret from webhook_endpoints": "denied",
    "select * from seal_keys": "denied",
    "select 1; select 2": "one statement",
    "select 1; delete from tenants": "one statement",
    "select 1) as q (c0) limit 1; drop table tenants; --": "syntax error",
    "select $1": "parameters",
    "select " + ", ".join(["1"] * 101): "100 columns",
    "selec": "syntax error",
    "select 'unended": "unterminated",
}


@pytest.mark.parametrize("query", ATTACKS)
def test_what_does_not_only_read_is_answered_with_a_sentence(console: Console, query: str) -> None:
    status, said = ask(console, query)
    assert ATTACKS[query].lower() in said.lower()
    assert status == 400
    assert console.get("/console/tenants").status_code == 200


LOGGED = "pg_logical_emit_message(false, 'x', repeat('y', 1000000))"
EFFECTS = (
    f"select {LOGGED} from generate_series(1, 300)",  # noqa: S608
    f"select pg_catalog.{LOGGED}",
    f'select pg_catalog."pg_logical_emit_message"{LOGGED[23:]}',
    f"select PG_Logical_EMIT_message/* */ {LOGGED[23:]}",
    f'select U&"pg\\005flogical_emit_message"{LOGGED[23:]}',
    f"select u&\"pg!005flogical_emit_message\" uescape '!' {LOGGED[23:]}",
    f"with x as (select {LOGGED} as a) select 1 from x where a is not null",  # noqa: S608
    f"select 1 from (values (1)) v (a) join lateral {LOGGED} as w on true",  # noqa: S608
    f"select 1 order by {LOGGED}",
    f"select 1 limit case when {LOGGED} is null then 0 else 1 end",
    f"select count(*) filter (where {LOGGED} is not null)",
    f"values ({LOGGED})",
    f"do $$ begin perform {LOGGED}; end $$",
    f"explain analyze select {LOGGED}",
    f"create temp table t as select {LOGGED}",
    "select query_to_xml('select pg_logical' || '_emit_message(false, ''x'', ''y'')', true, false, '')",
    "select query_to_xmlschema(chr(115), true, false, '')",
    "select cursor_to_xml('c', 1, true, false, '')",
    "select * from ts_stat('select pg_logical' || '_emit_message(false, ''x'', ''y'')::text::tsvector')",
    "select ts_rewrite('a'::tsquery, 'select pg_' || 'export_snapshot()::tsquery, null::tsquery')",
    "select pg_try_advisory_lock(g) from generate_series(1, 100000) g",
    "select pg_advisory_xact_lock_shared(1)",
    "select pg_export_snapshot()",
    "select pg_current_xact_id()",
    "select txid_current()",
    "select pg_notify('holdfast_cancel', 'x')",
    "select lo_create(g) from generate_series(1, 1000) g",
    "select lo_from_bytea(0, 'x')",
    "select nextval('s')",
    "select setval('s', 1)",
    "select pg_switch_wal()",
    "select pg_create_restore_point('x')",
    "select pg_cancel_backend(1)",
    "select * from dblink('', 'select 1') as t (a int)",
)
PAGE_BYTES = 8192


@pytest.mark.parametrize("wish", ["run", "explain"])
def test_no_query_writes_to_the_log_nor_takes_a_lock(console: Console, site: Site, wish: str) -> None:
    """Pruning of pages that are read may write a page; what servers write meanwhile is not counted here."""
    with psycopg.connect(site.database_url, autocommit=True) as connection:
        for query in EFFECTS:
            before = _log_position(connection)
            status, said = ask(console, query, wish)
            assert status == 400, (query, said)
            assert _log_position(connection) - before < 16 * PAGE_BYTES, query


def _log_position(connection: psycopg.Connection) -> int:
    row = connection.execute("select pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize(
    "query",
    [
        "select count(*) from admin.items where role = 'system'",
        "select random(), clock_timestamp(), gen_random_uuid(), pg_total_relation_size('responses')",
        "select relname, pg_size_pretty(pg_table_size(oid)) from pg_class limit 1",
        "select pid, state from pg_stat_activity",
    ],
)
def test_what_only_reads_or_draws_is_answered(console: Console, query: str) -> None:
    assert ask(console, query)[0] == 200


@pytest.mark.parametrize("query", ["", " ", "x" * 20_001])
def test_a_query_without_text_or_with_too_much_is_refused(console: Console, query: str) -> None:
    assert console.post("/console/sql", {"query": query}).status_code == 400


def test_a_result_is_cut_at_its_rows_and_bytes(console: Console) -> None:
    status, said = ask(console, "select g from generate_series(1, 10005) g")
    assert (status, "more than 10,000 rows" in said) == (200, True)
    status, said = ask(console, "select repeat('x', 1000000) from generate_series(1, 1000)")
    assert (status, "more than 10 MB" in said) == (200, True)


def test_without_a_reader_the_page_says_how_to_make_one(scripted_server: ServerProcess) -> None:
    with Console(scripted_server, "") as console:
        assert "holdfast db create-user NAME --as reader" in console.get("/console/sql").text
        status, said = ask(console, "select 1")
    assert (status, "create-user" in said) == (400, True)


def test_a_user_who_may_write_is_not_a_reader(start_server: StartServer, database_url: str) -> None:
    with Console(start_server(reader_database_url=database_url), "") as console:
        console.get("/console/sql")
        status, said = ask(console, "select 1")
    assert (status, "may do more than read" in said) == (400, True)
