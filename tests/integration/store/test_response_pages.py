"""Lists of responses, in the store: one order whatever the times are, one tenant, one page at a time."""

from datetime import UTC, datetime
from uuid import UUID

import pytest
from sqlalchemy import text

from server.protocol.ids import new_uuid
from server.protocol.list_pages import PageRequest
from server.store.content import response_pages
from server.store.content.response_pages import Filters, PageCursor
from server.store.database import Connection, Database
from tests.support.builders import TENANT, insert_response, register

THEN = datetime(2026, 1, 1, tzinfo=UTC)


def plant(database: Database, count: int, *, tenant: str = TENANT) -> list[UUID]:
    """Responses that were made at the same moment."""
    replica = register(database)
    made = [new_uuid() for _ in range(count)]
    with database.begin() as connection:
        for response in made:
            insert_response(connection, replica, id=response, tenant=tenant)
        connection.execute(text("update responses set created_at = :then"), {"then": THEN})
    return made


def walk(connection: Connection, *, newest_first: bool) -> list[UUID]:
    found: list[UUID] = []
    after: PageCursor | None = None
    while page := response_pages.response_page(
        connection, TENANT, Filters(), PageRequest(after, 2, newest_first)
    ):
        found += [stored.id for stored in page]
        after = PageCursor(page[-1].created_at, page[-1].id)
    return found


@pytest.mark.parametrize("newest_first", [True, False])
def test_responses_of_one_moment_are_each_listed_once(database: Database, newest_first: bool) -> None:
    made = plant(database, 7)
    with database.begin() as connection:
        assert walk(connection, newest_first=newest_first) == sorted(made, reverse=newest_first)


def test_another_tenants_responses_are_neither_listed_nor_cursors(database: Database) -> None:
    foreign = plant(database, 2, tenant="globex")
    with database.begin() as connection:
        assert walk(connection, newest_first=True) == []
        assert response_pages.find_cursor(connection, TENANT, foreign[0]) is None
        assert response_pages.find_cursor(connection, "globex", foreign[0]) == PageCursor(THEN, foreign[0])


def test_every_list_of_a_hundred_thousand_is_found_by_an_index(database: Database) -> None:
    with database.begin() as connection:
        for first in range(0, 100_000, 10_000):  # no statement of a server takes as long as all of them do
            connection.execute(text(MANY), {"first": first})
        connection.execute(text("analyze responses"))
        for filters in (Filters(), Filters(model="rare"), Filters(status="failed"), MARKED):
            for after in (None, PageCursor(THEN, UUID(int=7))):
                assert rows_read(connection, filters, after) <= 200


MARKED = Filters(metadata={"mark": "500"})
MANY = """
    insert into responses
        (tenant, id, status, background, stream, model, seed, created_at, request, metadata, size, kind, turn)
    select 'acme', ('00' || substr(md5(n::text), 3))::uuid,
        case when n % 10000 = 0 then 'failed' else 'completed' end,
        false, false,
        case when n % 10000 = 1 then 'rare' else 'model' end, 1,
        timestamptz '2026-01-01Z' + make_interval(secs => n - 50000), '{}',
        case when n % 100 = 0 then jsonb_build_object('mark', n::text) else '{}' end, 100, 'response', 1
    from generate_series(:first + 1, :first + 10000) n
"""


def rows_read(connection: Connection, filters: Filters, after: PageCursor | None) -> int:
    """How many rows the page's query fetches, by Postgres's own count within this transaction."""
    counted = text(
        "select sum(pg_stat_get_xact_tuples_returned(relid) + pg_stat_get_xact_tuples_fetched(relid))::bigint"
        " from pg_partition_tree('responses') where isleaf"
    )
    before = connection.execute(counted).scalar_one()
    response_pages.response_page(connection, TENANT, filters, PageRequest(after, 21, newest_first=True))
    return int(connection.execute(counted).scalar_one() - before)
