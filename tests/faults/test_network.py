"""F4: the network between a server and Postgres is slow, silent, cut, or delivers in small pieces."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event
from time import monotonic

import httpx
import psycopg
import pytest

from tests.fix_proxy import Proxy
from tests.fix_server import StartServerOn
from tests.fix_tally import Tally
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess
from tests.support.sse import create, parse, replay
from tests.support.traffic import Traffic, check_answers, check_replay, check_store, check_streams

PACE = {"scripted_tokens": 5000, "scripted_step_seconds": 0.02}
START_AGAIN_EXIT = 70
ANSWER_S = 12.0
"""How long a refusal may take while Postgres is silent: a statement's time, a connection's, and some."""
ENDED_S = 30.0
"""How long an orderly end may take at the most."""
RECOVERY_S = 5.0
"""How long after the trouble the pool may need."""


WORDS = {"reset": "reset", "strand": "that swallow every byte", "down": "that are not there"}


def check(traffic: Traffic, database_url: str) -> None:
    check_streams(traffic, traffic.server)
    check_answers(traffic)
    check_store(traffic, traffic.server, database_url)


def check_threads(server: ServerProcess) -> None:
    """None is stuck: as many requests as there are threads, and more, are answered at the same time."""
    eventually(lambda: is_served(server), within=RECOVERY_S)
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda _: is_served(server), range(8)))


def is_served(server: ServerProcess) -> bool:
    return httpx.get(f"{server.url}/health/ready", timeout=RECOVERY_S).status_code == 200


@pytest.mark.parametrize("seconds", [1.0, pytest.param(5.0, marks=pytest.mark.faults)])
def test_streams_wait_for_a_network_that_is_silent_for_less_than_a_lease(
    proxy: Proxy, database_url: str, start_server_on: StartServerOn, seconds: float, tally: Tally
) -> None:
    server = start_server_on(proxy.url, database_connections=4, **PACE)
    with Traffic(server, tokens=100) as traffic, proxy.deaf():
        Event().wait(seconds)
    check(traffic, database_url)
    check_threads(server)
    assert max(one.longest_pause for one in traffic.followed) <= 2 * seconds + RECOVERY_S
    tally["F4", "seconds of silence that streams sat out"] += int(seconds)
    tally["F4", "streams followed"] += len(traffic.followed)


@pytest.mark.faults
def test_a_silence_longer_than_its_lease_costs_a_replica_its_runs(
    proxy: Proxy, database_url: str, start_server_on: StartServerOn, tally: Tally
) -> None:
    lost = start_server_on(proxy.url, lease_seconds=2, database_connections=4, **PACE)
    other = start_server_on(database_url, lease_seconds=2, **PACE)
    with (
        psycopg.connect(database_url, autocommit=True) as connection,
        Traffic(lost, tokens=4000, writers=0, readers=4) as cut,
        Traffic(other, tokens=100) as untouched,
    ):
        with proxy.deaf():
            eventually(lambda: unready_within(lost, ANSWER_S), within=ANSWER_S)
            eventually(lambda: dead(connection) == 1, within=ANSWER_S)
        assert lost.wait() == START_AGAIN_EXIT
    check(untouched, database_url)
    for one in cut.followed:
        assert not one.is_whole
        check_replay(one, other)
        ending = httpx.get(f"{other.api}/responses/{one.response_id}").json()
        assert ending["status"] == "failed"
    assert max(answer.seconds for answer in cut.read) <= ANSWER_S
    assert {answer.status for answer in cut.read} <= {200, 503, 0}
    lost.start()
    check_threads(lost)
    tally["F4", "silences longer than a lease"] += 1
    tally["F4", "streams followed"] += len(cut.followed) + len(untouched.followed)


def dead(connection: psycopg.Connection) -> int:
    row = connection.execute("select count(*) from replicas where state = 'dead'").fetchone()
    assert row is not None
    return int(row[0])


def unready_within(server: ServerProcess, seconds: float) -> bool:
    """Whether a load balancer is told that this server cannot serve."""
    return httpx.get(f"{server.url}/health/ready", timeout=seconds).status_code == 503


@pytest.mark.parametrize(
    "trouble",
    [
        "reset",
        pytest.param("strand", marks=pytest.mark.faults),
        pytest.param("down", marks=pytest.mark.faults),
    ],
)
def test_streams_go_on_over_new_connections(
    proxy: Proxy, database_url: str, start_server_on: StartServerOn, trouble: str, tally: Tally
) -> None:
    server = start_server_on(proxy.url, database_connections=4, **PACE)
    with Traffic(server, tokens=200) as traffic:
        for _ in range(3):
            if trouble == "reset":
                proxy.reset()
            elif trouble == "strand":
                proxy.strand()
            else:
                with proxy.down():
                    Event().wait(0.5)
            before = len(traffic.created)
            eventually(lambda: len(traffic.created) > before + 2, within=ANSWER_S)  # noqa: B023
            tally["F4", f"networks {WORDS[trouble]}"] += 1
    check(traffic, database_url)
    check_threads(server)


@pytest.mark.faults
def test_a_server_that_is_asked_to_end_without_its_database_ends_and_another_goes_on(
    proxy: Proxy, database_url: str, start_server_on: StartServerOn, tally: Tally
) -> None:
    leaving = start_server_on(proxy.url, lease_seconds=2, drain_seconds=1, **PACE)
    other = start_server_on(database_url, lease_seconds=2, **PACE)
    body = {"model": MODEL, "input": "Go on.", "background": True, "max_output_tokens": 200}
    with create(leaving.url, body) as stream:
        response_id = stream.take(20)[0].json["response"]["id"]
    with proxy.down():
        asked = monotonic()
        leaving.ask_to_end()
        assert leaving.wait() == START_AGAIN_EXIT
        assert monotonic() - asked <= ENDED_S
    with replay(other.url, response_id) as again:
        frames = parse(again.read())
    assert [frame.number for frame in frames] == list(range(len(frames)))
    assert frames[-1].json["response"]["usage"]["output_tokens"] == 200
    tally["F4", "servers that were asked to end without their database"] += 1


@pytest.mark.parametrize("trouble", ["slices", pytest.param("latency", marks=pytest.mark.faults)])
def test_a_bad_network_costs_time_and_nothing_else(
    proxy: Proxy, database_url: str, start_server_on: StartServerOn, trouble: str, tally: Tally
) -> None:
    server = start_server_on(proxy.url, database_connections=4, **PACE)
    if trouble == "latency":
        proxy.delay(0.2)
    else:
        proxy.slice(16)
    with Traffic(server, tokens=50, streams=2, writers=1, readers=1) as traffic:
        eventually(lambda: len(traffic.created) >= 2, within=60.0)
    check(traffic, database_url)
    assert {answer.status for answer in traffic.created + traffic.read} == {200}
    numbers = [frame.number for one in traffic.followed for frame in parse(one.events)]
    assert numbers.count(0) == len(traffic.followed)
    tally["F4", "networks that are slow or cut everything in pieces"] += 1
