from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from server.maintenance.erasure import Erasure
from server.metrics.refused_requests import RefusedRequests
from server.store.administration import refused_request_counts
from server.store.administration.refused_request_counts import RefusedRequest
from server.store.database import Database
from server.store.erasure.subject import Subject
from tests.support.eventually import eventually

LIMITED = RefusedRequest("acme", "/v1/responses", 429, "rate_limit_exceeded")
ADD_KEY = "insert into api_keys (tenant, id, name, digest) values ('acme', %s, '', '')"
WAITS = "select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
UNKNOWN = RefusedRequest("", "/v1/responses", 401, "invalid_api_key")


def test_counts_of_an_hour_are_added_up(database: Database) -> None:
    for _ in range(2):
        with database.begin() as connection:
            refused_request_counts.add(connection, {LIMITED: 2, UNKNOWN: 1})
    with database.begin() as connection:
        rows = connection.exec_driver_sql(
            "select tenant, outcome, error_code, route, http_status, sum(requests) from admin.failures_daily"
            " group by 1, 2, 3, 4, 5 order by 5"
        ).all()
    assert list(map(tuple, rows)) == [
        (None, "refused", "invalid_api_key", "/v1/responses", 401, 2),
        ("acme", "refused", "rate_limit_exceeded", "/v1/responses", 429, 4),
    ]


def test_counts_of_a_key_that_was_removed_go_with_it(database: Database) -> None:
    with database.begin() as connection:
        for key in ("k1", "k2"):
            connection.exec_driver_sql(ADD_KEY, (key,))
        of_keys = {LIMITED._replace(key_id=key): 2 for key in ("k1", "k2", "erased")}
        refused_request_counts.add(connection, {**of_keys, LIMITED: 1})
        found = connection.exec_driver_sql("select tenant, requests from refused_requests").all()
        by_key = connection.exec_driver_sql(
            "select tenant, key_id, http_status, error_code, requests from admin.refused_hourly order by 2"
        ).all()
    assert found == [("acme", 5)]
    assert by_key == [("acme", key, 429, "rate_limit_exceeded", 2) for key in ("k1", "k2")]


def test_an_erasure_waits_for_who_counts_what_was_refused(database: Database) -> None:
    with database.begin() as connection:
        connection.exec_driver_sql(ADD_KEY, ("k1",))
    with ThreadPoolExecutor(1) as pool:
        with database.begin() as connection:
            refused_request_counts.add(connection, {LIMITED._replace(key_id="k1"): 1})
            erasing = pool.submit(Erasure(database, Subject("acme"), 10.0).run, 60)
            eventually(lambda: database.read(lambda other: other.exec_driver_sql(WAITS).first()))
        assert erasing.result().complete
    with database.begin() as connection:
        assert connection.exec_driver_sql("select count(*) from refused_requests").scalar_one() == 0


def test_what_cannot_be_stored_is_stored_when_the_database_is_back(database: Database) -> None:
    refused = RefusedRequests()
    refused.add(Counter({LIMITED: 3}))
    away = Database("postgresql://nobody@127.0.0.1:1/none", pool_size=1)
    refused.write(away)
    away.close()
    refused.write(database)
    with database.begin() as connection:
        assert connection.exec_driver_sql("select sum(requests) from refused_requests").scalar_one() == 3


def test_counts_go_with_the_ledger_but_those_of_the_last_day(database: Database) -> None:
    with database.begin() as connection:
        connection.exec_driver_sql(
            "insert into refused_requests (tenant, hour, route, status, error_code, requests)"
            " select '', now() - n * interval '1 day', '', 400, '', n from unnest(array[0, 3, 9]) as n"
        )
        connection.exec_driver_sql(
            "insert into usage_ledger (tenant, response_id, model, status, stored, input_tokens,"
            " cached_tokens, output_tokens, reasoning_tokens, finished_at, kind, background, attempt) values"
            " ('t', gen_random_uuid(), 'm', 'completed', true, 1, 0, 1, 0, now() - interval '5 days',"
            " 'response', false, 1)"
        )
        refused_request_counts.forget(connection)
        left = "select requests from refused_requests order by 1"
        assert connection.exec_driver_sql(left).scalars().all() == [0, 3]
        connection.exec_driver_sql("delete from usage_ledger")
        refused_request_counts.forget(connection)
        assert connection.exec_driver_sql(left).scalars().all() == [0]
