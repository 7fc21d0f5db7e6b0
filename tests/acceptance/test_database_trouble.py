"""A database that goes away for a moment: streams wait and go on, and nothing is lost or doubled."""

import httpx
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.acceptance.error_object import check_error
from tests.fix_proxy import Proxy
from tests.fix_server import PACED, SCRIPTED, StartServer
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess
from tests.support.sse import create, parse, replay

HELLO = {"model": MODEL, "input": "Hello"}
OTHERS = "from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"


def test_stream_goes_on_when_its_database_connections_are_cut(
    start_server: StartServer, database_url: str
) -> None:
    server = start_server(**PACED)
    with (
        psycopg.connect(database_url, autocommit=True) as connection,
        create(server.url, {**HELLO, "max_output_tokens": 200}) as stream,
    ):
        frames = stream.take(5)
        response_id = frames[0].json["response"]["id"]
        for _ in range(8):
            connection.execute(f"select pg_terminate_backend(pid) {OTHERS}")
            frames += stream.take(2)
        frames += list(stream)
    assert [frame.number for frame in frames] == list(range(len(frames)))
    assert frames[-1].json["response"]["usage"]["output_tokens"] == 200
    with replay(server.url, response_id) as again:
        assert parse(again.read()) == frames


def test_a_server_that_starts_while_its_database_is_away_waits_live_but_not_ready(
    proxy: Proxy,
) -> None:
    server = ServerProcess(proxy.url, settings=SCRIPTED)

    def status() -> int:
        try:
            return httpx.get(f"{server.url}/health/ready", timeout=60).status_code
        except httpx.TransportError:
            return 0

    try:
        with proxy.down():
            server.launch()
            eventually(lambda: status() == 503, within=60)
            assert httpx.get(f"{server.url}/health/live").status_code == 200
            refused = httpx.post(f"{server.api}/responses", json=HELLO)
            check_error(refused, 503, "server_error")
            assert refused.json()["error"]["code"] == "overloaded"
            eventually(lambda: server.said().count("this server begins to serve by itself when it does") == 1)
        server.await_ready()
        assert httpx.post(f"{server.api}/responses", json=HELLO, timeout=60).status_code == 200
    finally:
        server.stop()


def test_requests_are_told_to_try_again_while_database_takes_no_connections(
    start_server: StartServer, database_url: str
) -> None:
    server = start_server()
    name = str(conninfo_to_dict(database_url)["dbname"])
    with psycopg.connect(make_conninfo(database_url, dbname="postgres"), autocommit=True) as connection:
        connection.execute(f"alter database {name} allow_connections false")
        connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [name]
        )
        try:
            answer = httpx.post(f"{server.api}/responses", json=HELLO, timeout=60)
            ready = httpx.get(f"{server.url}/health/ready", timeout=60)
            live = httpx.get(f"{server.url}/health/live")
        finally:
            connection.execute(f"alter database {name} allow_connections true")
    check_error(answer, 503, "server_error")
    assert answer.headers["retry-after"] == "1"
    assert (ready.status_code, live.status_code) == (503, 200)
    eventually(lambda: httpx.post(f"{server.api}/responses", json=HELLO).status_code == 200)
