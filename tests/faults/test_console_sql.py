"""Queries of the console's SQL page that take as long as they may."""

import threading

import pytest

from tests.acceptance.console.console_client import Console
from tests.acceptance.console.console_site import Site
from tests.acceptance.console.test_sql import READER, ask
from tests.acceptance.console.test_sql import console as console  # a fixture, as is the next
from tests.acceptance.console.test_sql import site as site
from tests.support.eventually import eventually

pytestmark = pytest.mark.faults
SLOW = ["select pg_sleep(100)", "select * from generate_series(1, 1e12)"]


@pytest.mark.parametrize("query", SLOW)
def test_a_query_that_takes_too_long_is_ended(console: Console, query: str) -> None:
    status, said = ask(console, query)
    assert (status, "5 s" in said) == (400, True)


def test_a_value_of_a_gigabyte_is_not_sent(console: Console) -> None:
    _status, said = ask(console, "select repeat('x', 1e9::int)")
    assert any(sentence in said for sentence in ("cut after", "5 s", "more memory"))
    assert console.get("/console/tenants").status_code == 200


def test_a_third_query_at_a_time_is_refused(site: Site, console: Console) -> None:
    def sleep() -> None:
        with Console(site.server, site.admin_key) as other:
            other.get("/console/sql")
            ask(other, "select pg_sleep(100)")

    sleeping = [threading.Thread(target=sleep) for _ in range(2)]
    for thread in sleeping:
        thread.start()
    active = "select count(*) from pg_stat_activity where usename = %s and query like '%%pg_sleep%%'"
    eventually(lambda: site.sql(active, READER) == [(2,)])
    assert console.post("/console/sql", {"query": "select 1"}).status_code == 503
    for thread in sleeping:
        thread.join()
    assert ask(console, "select 1")[0] == 200
