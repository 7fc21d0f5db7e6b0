"""Replicas with the roles api and worker on one database: who generates what, and who serves requests."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import httpx
import psycopg
import pytest

from tests.acceptance.error_object import check_error
from tests.fix_server import PACED, StartServer
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess, run_command
from tests.support.sse import create, parse, replay
from tests.support.websocket import Refused, WebSocket

ASK = {"model": MODEL, "input": "Go on.", "background": True, "max_output_tokens": 60}

_WATCH_OWNERS = """
    create table owners (response uuid, replica uuid, background boolean, cancelled boolean);
    create function watch_owner() returns trigger language plpgsql as $$ begin
        insert into owners
            values (new.id, new.replica_id, new.background, new.cancel_requested_at is not null);
        return new;
    end $$;
    create trigger watch_owner after insert or update on responses
        for each row when (new.replica_id is not null) execute function watch_owner();
"""
_OWNERS = """
    select distinct r.role from owners o join replicas r on r.id = o.replica
    where o.background = %s and not o.cancelled
"""


@dataclass(frozen=True)
class Fleet:
    apis: list[ServerProcess]
    workers: list[ServerProcess]
    database_url: str

    def roles_of_owners(self, *, background: bool) -> set[str]:
        """The roles of all replicas that have owned such a response that nobody had cancelled."""
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            return {role for (role,) in connection.execute(_OWNERS, [background])}

    def worker_of(self, response_id: str) -> ServerProcess | None:
        """The worker that runs the response now."""
        query = (
            "select p.pid from responses r join replicas p on p.id = r.replica_id"
            " where r.id = %s and r.status = 'in_progress'"
        )
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            row = connection.execute(query, [response_id.removeprefix("resp_")]).fetchone()
        return next((worker for worker in self.workers if row and worker.pid == row[0]), None)


StartFleet = Callable[[int, int], Fleet]


@pytest.fixture
def start_fleet(start_server: StartServer, database_url: str) -> Iterator[StartFleet]:
    """Starts so many api replicas and workers; api replicas never own what workers are to generate."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(_WATCH_OWNERS)
    fleets: list[Fleet] = []

    def start(apis: int, workers: int) -> Fleet:
        fleet = Fleet(
            [start_server(role="api", **PACED) for _ in range(apis)],
            [start_server(role="worker", **PACED) for _ in range(workers)],
            database_url,
        )
        fleets.append(fleet)
        return fleet

    yield start
    for fleet in fleets:
        assert fleet.roles_of_owners(background=True) <= {"worker"}
        assert fleet.roles_of_owners(background=False) <= {"api"}


def status(api: ServerProcess, response_id: str) -> str:
    found: str = httpx.get(f"{api.api}/responses/{response_id}", timeout=60).json()["status"]
    return found


def test_a_response_is_generated_by_a_worker_in_the_background_else_by_the_api_replica_that_got_it(
    start_fleet: StartFleet,
) -> None:
    fleet = start_fleet(2, 2)
    one, other = fleet.apis
    with create(one.url, ASK) as stream:
        seen = stream.take(8)
    response_id = seen[0].json["response"]["id"]
    with replay(other.url, response_id, seen[-1].number) as rest:
        seen += list(rest)
    assert [frame.number for frame in seen] == list(range(len(seen)))
    assert seen[-1].json["response"]["status"] == "incomplete"
    assert fleet.roles_of_owners(background=True) == {"worker"}
    begun = httpx.post(f"{one.api}/responses", json=ASK | {"max_output_tokens": 5000}, timeout=60).json()
    eventually(lambda: fleet.worker_of(begun["id"]), within=60)
    cancelled = httpx.post(f"{other.api}/responses/{begun['id']}/cancel", timeout=60).json()
    assert cancelled["status"] == "cancelled"
    assert status(one, begun["id"]) == "cancelled"
    foreground = httpx.post(f"{one.api}/responses", json=ASK | {"background": False}, timeout=60).json()
    assert foreground["usage"]["output_tokens"] == 60
    assert fleet.roles_of_owners(background=False) == {"api"}


def test_background_response_of_a_killed_worker_is_finished_by_the_other(start_fleet: StartFleet) -> None:
    fleet = start_fleet(2, 2)
    one, other = fleet.apis
    with create(one.url, ASK | {"max_output_tokens": 100}) as stream:
        seen = stream.take(20)
        response_id = seen[0].json["response"]["id"]
        worker = fleet.worker_of(response_id)
        assert worker is not None
        worker.kill()
        seen += list(stream)
    assert [frame.number for frame in seen] == list(range(len(seen)))
    assert seen[-1].json["response"]["usage"]["output_tokens"] == 100
    with replay(other.url, response_id) as again:
        assert parse(again.read()) == seen
    with psycopg.connect(fleet.database_url, autocommit=True) as connection:
        assert connection.execute("select attempt, deaths from responses").fetchall() == [(2, 0)]


def test_foreground_response_of_a_killed_api_replica_is_ended_by_the_others(
    start_server: StartServer,
) -> None:
    one, other = (start_server(role="api", **PACED) for _ in range(2))
    with create(one.url, ASK | {"background": False, "max_output_tokens": 5000}) as stream:
        seen = stream.take(20)
        one.kill()
    with replay(other.url, seen[0].json["response"]["id"]) as followed:
        frames = parse(followed.read())
    assert frames[:20] == seen
    assert frames[-1].event == "response.failed"


def test_background_response_waits_in_the_queue_until_a_worker_starts(
    start_fleet: StartFleet, start_server: StartServer
) -> None:
    (api,) = start_fleet(1, 0).apis
    waiting, unwanted = (httpx.post(f"{api.api}/responses", json=ASK, timeout=60).json() for _ in range(2))
    httpx.post(f"{api.api}/responses/{unwanted['id']}/cancel", timeout=60)
    eventually(lambda: status(api, unwanted["id"]) == "cancelled", within=60)
    assert status(api, waiting["id"]) == "queued"
    start_server(role="worker")
    eventually(lambda: status(api, waiting["id"]) == "completed", within=60)


def test_worker_releases_its_background_response_when_it_is_stopped(start_fleet: StartFleet) -> None:
    fleet = start_fleet(1, 2)
    (api,) = fleet.apis
    with create(api.url, ASK | {"max_output_tokens": 100}) as stream:
        seen = stream.take(10)
        worker = fleet.worker_of(seen[0].json["response"]["id"])
        assert worker is not None
        worker.ask_to_end()
        assert worker.wait() == 0
        seen += list(stream)
    assert [frame.number for frame in seen] == list(range(len(seen)))
    assert seen[-1].json["response"]["usage"]["output_tokens"] == 100
    with psycopg.connect(fleet.database_url, autocommit=True) as connection:
        assert connection.execute("select deaths from responses").fetchall() == [(0,)]


def test_worker_serves_health_and_refuses_everything_else(start_server: StartServer) -> None:
    worker = start_server(role="worker", host="0.0.0.0")  # noqa: S104 - without a key, as nothing is served
    for path in ("/health/live", "/health/ready", "/health", "/ping", "/version"):
        assert httpx.get(worker.url + path).status_code == 200, path
    refused = [
        httpx.get(f"{worker.api}/models"),
        httpx.post(f"{worker.api}/responses", json=ASK),
        httpx.post(f"{worker.api}/responses", content=b"x" * 100_000),
        httpx.get(f"{worker.api}/responses/resp_{'0' * 32}"),
        httpx.delete(f"{worker.api}/responses/resp_{'0' * 32}"),
        httpx.get(f"{worker.url}/openapi.json"),
        httpx.get(f"{worker.url}/"),
        httpx.post(f"{worker.url}/tokenize", json={"prompt": "x"}),
    ]
    for answer in refused:
        error = check_error(answer, 503, "server_error")
        assert error["code"] == "worker_replica"
        assert error["message"].startswith("This replica is a worker")
    with pytest.raises(Refused) as socket, WebSocket(worker.url):
        pass
    assert socket.value.status == 503


def test_api_replica_refuses_to_load_a_model(database_url: str) -> None:
    refused = run_command("serve", "--role", "api", database_url=database_url)
    assert refused.returncode == 1
    assert refused.stderr.strip().endswith("set engine to one of another process, or role to all or worker.")
    assert "Traceback" not in refused.stderr
