"""The console's queries: sums that are those of the views, and a history that indexes find."""

# ruff: noqa: S608 - queries of this file's own texts

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, event, text

from bench.generated_rows import fill
from server.embedded_postgres.embedded_server import EmbeddedPostgres
from server.store.administration import usage_sums
from server.store.administration.usage_sums import MAX_CHARTED, MAX_GROUPS, Grouping, UsageFilter, UsageRow
from server.store.console import history_queries, time_limit
from server.store.console.history_queries import HistoryFilter
from server.store.console.time_limit import TimeOver
from server.store.content.response_pages import PageCursor
from server.store.database import Database
from server.store.schema import partitions
from tests.fix_postgres import temporary_database

TODAY = datetime.now(UTC).date()
ALL = UsageFilter.of_days(TODAY - timedelta(days=100), TODAY + timedelta(days=1))
"""Also what is written after midnight."""
SUMS = UsageRow._fields[UsageRow._fields.index("responses") :]
VIEW_SUMS = """
    coalesce(sum(responses), 0), coalesce(sum(responses) filter (where status = 'failed'), 0),
    coalesce(sum(input_tokens), 0), coalesce(sum(cached_tokens), 0), coalesce(sum(output_tokens), 0),
    coalesce(sum(reasoning_tokens), 0), coalesce(sum(cost), 0), coalesce(sum(unpriced), 0)
"""
USER_SUMS = VIEW_SUMS.replace("coalesce(sum(responses) filter (where status = 'failed'), 0)", "null")
COLUMNS: dict[Grouping, str] = {
    "tenant": "tenant",
    "model": "model",
    "key": "key_id",
    "user": "tenant, end_user",
}


@pytest.fixture(scope="module")
def filled(cluster: EmbeddedPostgres, template_database: str) -> Iterator[Database]:
    """3,000 responses, a third of which are not folded into the sums of their days."""
    with temporary_database(cluster, "console", template=template_database) as name:
        fill(cluster.url_of(name), 3_000)
        database = Database(cluster.url_of(name), pool_size=1)
        yield database
        database.close()


def read(database: Database, wanted: UsageFilter) -> list[UsageRow]:
    return database.read(lambda connection: usage_sums.read_usage(connection, wanted))


def ask(database: Database, query: str, *arguments: object) -> list[tuple[Any, ...]]:
    with psycopg.connect(database.url) as connection:
        return connection.execute(query.encode(), arguments).fetchall()


def sums(row: UsageRow) -> tuple[object, ...]:
    return tuple(getattr(row, name) for name in SUMS)


@pytest.mark.parametrize("by", usage_sums.GROUPINGS)
def test_the_sums_are_those_of_the_views(filled: Database, by: Grouping) -> None:
    found = read(filled, replace(ALL, by=by))
    view, shown = ("users_daily", USER_SUMS) if by == "user" else ("usage_daily", VIEW_SUMS)
    ((*expected,),) = ask(filled, f"select {shown} from admin.{view}")
    assert [sums(row) for row in found if row.part == "total"] == [tuple(expected)]
    days = ask(filled, f"select day, {shown} from admin.{view} group by 1 order by 1")
    assert [(row.day, *sums(row)) for row in found if row.part == "day"] == days
    order = f"sum(input_tokens + output_tokens) desc, sum(responses) desc, {COLUMNS[by]}"
    groups = ask(
        filled,
        f"select {shown} from admin.{view} group by {COLUMNS[by]} order by {order} limit %s",
        MAX_GROUPS,
    )
    assert [sums(row) for row in found if row.part == by] == groups


def test_the_chart_has_the_largest_groups_of_each_day(filled: Database) -> None:
    found = read(filled, replace(ALL, by="key"))
    largest = [row.key_id for row in found if row.part == "key"][:MAX_CHARTED]
    query = f"select day, {VIEW_SUMS} from admin.usage_daily where key_id = %s group by 1 order by 1"
    for key in largest:
        charted = [(row.day, *sums(row)) for row in found if row.part == "chart" and row.key_id == key]
        assert charted == ask(filled, query, key)
    assert {row.key_id for row in found if row.part == "chart"} == set(largest)


def test_conditions_and_days_narrow_all_sums(filled: Database) -> None:
    days = (TODAY - timedelta(days=30), TODAY - timedelta(days=3))
    wanted = UsageFilter.of_days(*days, tenant="acme", model="qwen3-8b")
    (total,) = [row for row in read(filled, wanted) if row.part == "total"]
    condition = "tenant = 'acme' and model = 'qwen3-8b' and day between %s and %s"
    query = f"select {VIEW_SUMS} from admin.usage_daily where {condition}"
    assert [sums(total)] == ask(filled, query, wanted.first, wanted.last)
    assert total.responses > 0


def test_a_period_without_responses_is_all_zeros(filled: Database) -> None:
    found = read(filled, UsageFilter.of_days(date(2001, 1, 1), date(2001, 1, 7)))
    assert [sums(row) for row in found] == [(0, 0, 0, 0, 0, 0, Decimal(0), 0)]


def test_a_user_is_one_of_a_tenant(filled: Database) -> None:
    found = read(filled, replace(ALL, by="user", end_user="user-1"))
    query = f"select tenant, {USER_SUMS} from admin.users_daily where end_user = 'user-1' group by 1"
    users = {(row.tenant, *sums(row)) for row in found if row.part == "user"}
    assert users == set(ask(filled, query))
    assert len(users) > 1


def test_failures_and_refused_requests_are_those_of_the_view(filled: Database) -> None:
    failed = [row for row in read(filled, ALL) if row.part == "failure" and row.status != "completed"]
    refused = filled.read(lambda connection: usage_sums.read_refused(connection, ALL))
    found = {(row.status, row.error_code, row.responses) for row in failed}
    found |= {("refused", row.error_code, row.requests) for row in refused}
    query = "select outcome, error_code, sum(requests) from admin.failures_daily group by 1, 2"
    assert found == set(ask(filled, query))
    assert any(row[0] == "refused" for row in found)


def test_every_day_of_every_group_is_in_the_file(filled: Database) -> None:
    rows = filled.read(lambda connection: usage_sums.read_days_of_groups(connection, ALL))
    query = f"select day, tenant, {VIEW_SUMS} from admin.usage_daily group by 1, 2 order by 1, 2"
    assert [(row.day, row.tenant, *sums(row)) for row in rows] == ask(filled, query)


def test_the_top_users_are_those_of_the_view(filled: Database) -> None:
    rows = filled.read(lambda connection: usage_sums.read_top_users(connection, ALL))
    query = f"""
        select tenant, end_user, {USER_SUMS} from admin.users_daily group by 1, 2
        order by sum(input_tokens + output_tokens) desc, 1, 2 limit %s
    """
    assert [(row.tenant, row.end_user, *sums(row)) for row in rows] == ask(filled, query, MAX_GROUPS)


def test_percentiles_are_those_of_the_ledger(filled: Database) -> None:
    found = filled.read(lambda connection: usage_sums.read_latencies(connection, replace(ALL, by="model")))
    percentiles = "percentile_cont(array[0.5, 0.95, 0.99]) within group (order by {})"
    shown = f"count(*), {percentiles.format('first_token_seconds')}, {percentiles.format('total_seconds')}"
    completed = "from admin.usage where status = 'completed'"
    (whole,) = ask(filled, f"select {shown} {completed}")
    assert tuple(found[0]) == (None, *whole)
    by_model = ask(filled, f"select model, {shown} {completed} group by 1 order by 2 desc")
    assert [tuple(row) for row in found[1:]] == by_model


FILTERS = {
    "r.status = 'failed'": HistoryFilter(status="failed"),
    "r.status = 'completed'": HistoryFilter(status="completed"),
    "r.error_code = 'server_error'": HistoryFilter(error_code="server_error"),
    "r.model = 'gpt-oss-20b'": HistoryFilter(model="gpt-oss-20b"),
    "r.end_user = 'user-1'": HistoryFilter(end_user="user-1"),
    "r.tenant = 'acme' and r.end_user = 'user-1'": HistoryFilter(tenant="acme", end_user="user-1"),
    "r.key_id = 'key-acme'": HistoryFilter(key_id="key-acme"),
    "r.key_id = 'none'": HistoryFilter(key_id="none"),
    "r.metadata ->> 'team' = 'red'": HistoryFilter(metadata={"team": "red"}),
    "r.model = 'none'": HistoryFilter(model="none"),
    "r.request_id = 'req_7'": HistoryFilter(request_id="req_7"),
    "true": HistoryFilter(),
}
"""By the same condition in words of SQL."""
FOUND_BY_INDEX = (
    "true",
    "r.status = 'failed'",
    "r.model = 'none'",
    "r.end_user = 'user-1'",
    "r.key_id = 'key-acme'",
)


def page(connection: Connection, wanted: HistoryFilter, before: PageCursor | None = None) -> list[Any]:
    return history_queries.history_page(connection, wanted, before, 51, contents=True)


@pytest.mark.parametrize("condition", FILTERS)
def test_a_page_has_the_newest_that_fit_and_the_next_one_goes_on(filled: Database, condition: str) -> None:
    newest = "order by r.created_at desc, r.id desc limit 102"
    query = f"select r.id from admin.responses r where {condition} {newest}"
    expected = [id_ for (id_,) in ask(filled, query)]
    first = filled.read(lambda connection: page(connection, FILTERS[condition]))
    assert [row.id for row in first] == expected[:51]
    if first:
        last = PageCursor(first[-1].created_at, first[-1].id)
        later = filled.read(lambda connection: page(connection, FILTERS[condition], last))
        assert [row.id for row in later] == expected[51:]


def test_the_responses_of_a_conversation_are_found_by_its_items(filled: Database) -> None:
    take = """
        update responses set conversation_id = c.id from (
            select tenant, id from conversations where tenant = 'acme' limit 1
        ) c where responses.tenant = c.tenant and responses.id = (
            select id from responses where tenant = 'acme' order by id limit 1
        ) returning c.id, responses.id
    """
    with psycopg.connect(filled.url) as connection:
        ((conversation, response),) = connection.execute(take.encode()).fetchall()
        add = """
            update conversation_items set response_id = %s
            where tenant = 'acme' and conversation_id = %s and position = 1
        """
        connection.execute(add.encode(), (response, conversation))
    wanted = HistoryFilter(conversation=conversation)
    assert [row.id for row in filled.read(lambda connection: page(connection, wanted))] == [response]


@pytest.mark.parametrize("condition", FOUND_BY_INDEX)
def test_no_page_reads_a_whole_table_of_responses(filled: Database, condition: str) -> None:
    plan = explained(filled, FILTERS[condition])
    assert "Index" in plan
    assert "Seq Scan on responses" not in plan, plan


def test_a_period_leaves_earlier_partitions_out(filled: Database) -> None:
    with filled.begin() as connection:
        now = datetime.now(UTC)
        (later, *_) = partitions.add_missing(
            connection, "responses", now + timedelta(days=60), timedelta(days=1)
        )
        (first, *_) = [one.name for one in partitions.ranged_partitions(connection, "responses")]
    for since, is_read in ((None, True), (later.start + timedelta(hours=1), False)):
        plan = explained(filled, HistoryFilter(since=since))
        found = plan.partition("CTE found")[2].partition("CTE Scan on found")[0]
        assert (f"on {first}" in found) == is_read, plan


def test_a_statement_that_takes_too_long_says_that_the_time_is_over(database: Database) -> None:
    with database.begin() as connection:
        with pytest.raises(TimeOver, match="Narrow the time"), time_limit.limit_time(connection):
            connection.execute(text("select pg_sleep(60)"))
        connection.rollback()


def explained(database: Database, wanted: HistoryFilter) -> str:
    """The plan of a page's statement where Postgres avoids to read whole tables, however small."""
    statements: list[tuple[str, Any]] = []
    with database.begin() as connection:
        connection.exec_driver_sql("set local enable_seqscan = off")
        event.listen(
            connection,
            "before_cursor_execute",
            lambda _one, _two, statement, parameters, *_more: statements.append((statement, parameters)),
        )
        page(connection, wanted)
        ((statement, parameters),) = [one for one in statements if "with found" in one[0]]
        lines = connection.exec_driver_sql(f"explain {statement}", parameters).scalars()
        return "\n".join(lines)
