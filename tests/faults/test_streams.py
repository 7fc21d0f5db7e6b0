"""F6 to F8: clients that stop reading, that hang up, and a thousand that only wait."""

import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from statistics import quantiles
from threading import Event
from time import monotonic

import httpx
import psycopg
import pytest

from tests.fix_server import StartServer
from tests.fix_tally import Tally
from tests.support.eventually import eventually
from tests.support.raw_client import RawClient, connections, cpu_seconds, resident_bytes, threads
from tests.support.server_process import MODEL, ServerProcess
from tests.support.sse import create, parse, replay

HELLO = {"model": MODEL, "input": "Hello"}
MIB = 1024 * 1024
ACTIVE = 32
PROBES = 200
MOST_BYTES = 50_000
"""Of memory for a stream that waits. What the process has without any is mostly libraries."""
MOST_IDLE = 0.1
"""Of a core, on a machine that does other things too; on one of its own it is a third of that."""


@contextmanager
def closing(clients: list[RawClient]) -> Iterator[list[RawClient]]:
    try:
        yield clients
    finally:
        for client in clients:
            client.close()


def rows(database_url: str, query: str) -> list[tuple[object, ...]]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        return connection.execute(query).fetchall()


def name_of(client: RawClient) -> str:
    """The id of the response that the client reads."""
    data = client.received.partition(b"data: ")[2].partition(b"\n")[0]
    name: str = json.loads(data)["response"]["id"]
    return name


def read_many(server: ServerProcess, count: int, tokens: int) -> float:
    """So many streams at once, read to their ends; gives the seconds between two events, the 99th of 100."""

    def read(_number: int) -> list[float]:
        with create(server.url, {**HELLO, "max_output_tokens": tokens}) as stream:
            read = [(monotonic(), frame) for frame in stream]
        assert read[-1][1].json["response"]["usage"]["output_tokens"] == tokens
        return [later - sooner for (sooner, _), (later, _) in pairwise(read)]

    with ThreadPoolExecutor(count) as pool:
        gaps = [gap for gaps in pool.map(read, range(count)) for gap in gaps]
    return quantiles(gaps, n=100)[98]


@pytest.mark.faults
@pytest.mark.parametrize(
    ("stalled", "healthy", "tokens", "send_seconds", "slack"),
    [(8, 3, 200, 2, 30), pytest.param(100, 20, 2000, 30, 2, marks=pytest.mark.faults)],
)
def test_clients_that_stop_reading_are_dropped_and_hurt_nobody(
    start_server: StartServer,
    stalled: int,
    healthy: int,
    tokens: int,
    send_seconds: int,
    slack: int,
    tally: Tally,
) -> None:
    server = start_server(scripted_tokens=6000, scripted_step_seconds=0.002, send_seconds=send_seconds)
    with create(server.url, HELLO) as stream:
        raw = stream.read()
    assert len(raw) > 300_000, "the kernel would take it all"
    response_id = parse(raw)[0].json["response"]["id"]
    path = f"/responses/{response_id}?stream=true"
    alone = read_many(server, healthy, tokens)
    before = resident_bytes(server)
    with closing([RawClient(server, path, window=4096) for _ in range(stalled)]) as clients:
        first = monotonic()
        for client in clients:
            client.read_events(1)
        last = monotonic()
        beside = read_many(server, healthy, tokens)
        assert resident_bytes(server) - before < 50 * MIB
        eventually(lambda: connections(server) < stalled, within=send_seconds + slack)
        assert monotonic() - first > send_seconds - 2
        eventually(lambda: connections(server) == 0, within=last + send_seconds + slack - monotonic())
    assert "Traceback" not in server.said()
    with replay(server.url, response_id) as again:
        assert again.read() == raw
    tally["F6", "clients that stopped reading"] += stalled
    usual = "hundredths of a healthy reader's usual p99 between events"
    tally["F6", usual] = max(tally["F6", usual], round(100 * beside / alone))


@pytest.mark.parametrize("leaving", [12, pytest.param(200, marks=pytest.mark.faults)])
def test_whatever_way_clients_leave_what_nobody_reads_ends_and_background_goes_on(
    start_server: StartServer, database_url: str, leaving: int, tally: Tally
) -> None:
    server = start_server(
        scripted_tokens=6000, scripted_step_seconds=0.005, grace_seconds=0.5, max_running=512, max_waiting=512
    )
    choose = random.Random(leaving)
    kinds: list[dict[str, object]] = [{}, {"store": False}, {"background": True}]

    def come_and_go(number: int) -> None:
        client = RawClient(server, "/responses", {**HELLO, "stream": True, **kinds[number % 3]})
        client.read_events(choose.randint(1, 60))
        client.close(rudely=number % 2 == 0)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(come_and_go, range(leaving)))
    alone = len(range(2, leaving, 3))
    ended = [("cancelled", leaving - alone)]
    query = "select status, count(*) from usage_ledger group by status"
    eventually(lambda: rows(database_url, query) == ended, within=30)
    eventually(lambda: connections(server) == 0)
    running = rows(database_url, "select id from responses where background and status = 'in_progress'")
    assert len(running) == alone
    for (response,) in running:
        name = f"resp_{str(response).replace('-', '')}"
        assert httpx.post(f"{server.api}/responses/{name}/cancel").json()["status"] == "cancelled"
    assert threads(server) < 60
    tally["F7", "clients that hung up"] += leaving


@pytest.mark.faults
@pytest.mark.parametrize(("count", "held"), [(50, 0.0), pytest.param(1000, 30.0, marks=pytest.mark.faults)])
def test_streams_that_only_wait_cost_no_thread_and_little_else(
    start_server: StartServer, count: int, held: float, tally: Tally
) -> None:
    settings = {"scripted_step_seconds": 20, "max_running": 1, "max_queued": 2000, "hang_seconds": 100}
    settings["lease_seconds"] = 10  # as by default
    # One that is forked has memory of what its parent has imported for others.
    server, other = (start_server(module=("server",), **settings) for _ in range(2))
    first = RawClient(server, "/responses", {**HELLO, "stream": True})
    first.read_events(2)
    before = resident_bytes(server), resident_bytes(other)

    def attach(here: RawClient) -> RawClient:
        client = RawClient(other, f"/responses/{name_of(here)}?stream=true")
        client.read_events(1)
        return client

    with ThreadPoolExecutor(8) as pool:
        began = monotonic()
        made = list(pool.map(create_waiting, [server] * count))
        created = monotonic()
        attached = list(pool.map(attach, made))
        opened = monotonic()
    with closing([first, *made, *attached]):
        for replica, memory in zip((server, other), before, strict=True):
            assert connections(replica) >= count
            assert threads(replica) < 60
            assert resident_bytes(replica) - memory < 100 * MIB
            for _ in range(20):
                assert httpx.get(f"{replica.url}/health/live").status_code == 200
                assert httpx.get(f"{replica.api}/models").status_code == 200
        if held:
            tally["F8", "streams that wait"] += count
            tally["F8", "ms to create and open them"] += round(1000 * (created - began))
            tally["F8", "ms to open them on another replica"] += round(1000 * (opened - created))
            hold(server, other, held, tally)
            assert resident_bytes(other) - before[1] < count * MOST_BYTES
    for replica in (server, other):
        eventually(lambda replica=replica: connections(replica) == 0)  # type: ignore[misc]


def hold(one: ServerProcess, other: ServerProcess, seconds: float, tally: Tally) -> None:
    """Measures what it costs two servers that all their streams wait; keep-alives are sent meanwhile."""
    began, used = monotonic(), cpu_seconds(one) + cpu_seconds(other)
    Event().wait(seconds)
    share = (cpu_seconds(one) + cpu_seconds(other) - used) / 2 / (monotonic() - began)
    tally["F8", "thousandths of a core that a replica with them uses"] += round(1000 * share)
    tally["F8", "MiB that a replica with them has"] += resident_bytes(other) // MIB
    tally["F8", "ms that one in a hundred of the requests beside them takes"] += probe(other)
    assert share < MOST_IDLE


def probe(server: ServerProcess) -> int:
    """The milliseconds that one in a hundred small requests takes or exceeds."""
    times = []
    with httpx.Client() as client:
        for _ in range(PROBES):
            asked = monotonic()
            assert client.get(f"{server.api}/models").status_code == 200
            times.append(monotonic() - asked)
            Event().wait(0.05)
    return round(1000 * quantiles(times, n=100)[98])


@pytest.mark.faults
def test_streams_that_wait_do_not_hold_up_those_that_flow(start_server: StartServer, tally: Tally) -> None:
    server = start_server(
        scripted_tokens=6000,
        scripted_step_seconds=0.02,
        max_running=ACTIVE,
        max_queued=2000,
        lease_seconds=10,
    )
    over = Event()

    def read(client: RawClient) -> int:
        count = client.received.count(b"event: ")
        while not over.is_set():
            client.read_events(count := count + 1)
        return count

    active = [RawClient(server, "/responses", {**HELLO, "stream": True}) for _ in range(ACTIVE)]
    for client in active:
        client.read_events(3)
    before = resident_bytes(server)
    with ThreadPoolExecutor(ACTIVE) as pool, closing(active):
        flowing = [pool.submit(read, client) for client in active]
        with closing([create_waiting(server) for _ in range(1000)]):
            try:
                tally["F8", "ms of one in a hundred requests beside 32 active ones too"] += probe(server)
                assert resident_bytes(server) - before < 150 * MIB
                assert threads(server) < 60
            finally:
                over.set()
            tally["F8", "events of the active ones meanwhile"] += sum(one.result() for one in flowing)


def create_waiting(server: ServerProcess) -> RawClient:
    """The stream of a response for which the engine has no room."""
    client = RawClient(server, "/responses", {**HELLO, "stream": True, "background": True})
    client.read_events(1)
    return client


def test_connections_that_their_clients_have_closed_are_closed(start_server: StartServer) -> None:
    server = start_server()
    for _ in range(50):
        assert httpx.get(f"{server.url}/health/live").status_code == 200
    eventually(lambda: connections(server) == 0)
