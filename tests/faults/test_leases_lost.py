"""F25, F28 and F29: a database away, replicas frozen, an interpreter stalled, all for longer than a lease.

Whoever could not beat for a reason that struck everybody, or that is no death, keeps its lease and its runs.
"""

import os
import signal
from collections.abc import Sequence
from contextlib import closing
from time import monotonic

import psycopg
import pytest

from tests.fix_cluster import Cluster
from tests.fix_server import SCRIPTED, StartServer, StartServerOn
from tests.fix_tally import Tally
from tests.support.attached import HTTP, P2_SECONDS, retrieve
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess

LEASE_S = 2.0
PACE: dict[str, object] = {
    **SCRIPTED,
    "scripted_tokens": 300,
    "scripted_step_seconds": 0.02,
    "lease_seconds": LEASE_S,
}
OUTAGE_LEASES = 4
FREEZE_LEASES = 3
PATIENCE_S = 120.0
START_AGAIN_EXIT = 70

pytestmark = pytest.mark.faults


def begin(servers: Sequence[ServerProcess], each: int = 2) -> list[str]:
    """Background responses that run on these servers; their ids."""
    body = {"model": MODEL, "input": "Hello", "background": True}
    answers = [HTTP.post(f"{server.api}/responses", json=body) for server in servers for _ in range(each)]
    return [answer.raise_for_status().json()["id"] for answer in answers]


def let_pass(seconds: float) -> None:
    began = monotonic()
    eventually(lambda: monotonic() - began >= seconds, within=PATIENCE_S)


def await_completion(server: ServerProcess, responses: Sequence[str]) -> None:
    eventually(
        lambda: all(retrieve(server, one)["status"] == "completed" for one in responses), within=PATIENCE_S
    )


def fleet(url: str) -> tuple[int, int, int]:
    """Replicas that are alive, those that are dead, deaths counted."""
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        row = connection.execute(
            "select (select count(*) from replicas where state = 'alive'),"
            " (select count(*) from replicas where state = 'dead'), (select sum(deaths) from responses)"
        ).fetchone()
    assert row is not None
    return row[0], row[1], row[2]


def test_an_outage_of_four_leases_costs_no_replica_its_life_and_counts_no_death(
    own_cluster: Cluster, own_database_url: str, start_server_on: StartServerOn, tally: Tally
) -> None:
    servers = [start_server_on(own_database_url, **PACE) for _ in range(4)]
    responses = begin(servers)
    own_cluster.stop("fast")
    let_pass(OUTAGE_LEASES * LEASE_S)
    own_cluster.start()
    await_completion(servers[0], responses)
    let_pass(2 * LEASE_S)
    assert [server.has_ended for server in servers] == [False] * 4
    assert fleet(own_database_url) == (4, 0, 0)
    tally["F25", "replicas through an outage of four leases, none of which died"] += 4
    tally["F25", "responses of theirs completed, without a death counted"] += len(responses)


def freeze(servers: Sequence[ServerProcess], number: signal.Signals) -> None:
    for server in servers:
        os.killpg(server.pid, number)


def test_when_all_replicas_are_frozen_for_three_leases_none_is_declared_dead(
    start_server: StartServer, database_url: str, tally: Tally
) -> None:
    servers = [start_server(**PACE) for _ in range(3)]
    responses = begin(servers)
    freeze(servers, signal.SIGSTOP)
    let_pass(FREEZE_LEASES * LEASE_S)
    freeze(servers, signal.SIGCONT)
    await_completion(servers[0], responses)
    let_pass(2 * LEASE_S)
    assert [server.has_ended for server in servers] == [False] * 3
    assert fleet(database_url) == (3, 0, 0)
    tally["F28", "replicas frozen together for three leases, none of which died"] += 3


def test_when_one_replica_is_frozen_for_three_leases_others_finish_its_work_and_it_ends(
    start_server: StartServer, database_url: str, tally: Tally
) -> None:
    frozen, *others = [start_server(**PACE) for _ in range(3)]
    responses = begin([frozen, *others])
    freeze([frozen], signal.SIGSTOP)
    let_pass(FREEZE_LEASES * LEASE_S)
    eventually(lambda: fleet(database_url)[1] == 1, within=P2_SECONDS)
    freeze([frozen], signal.SIGCONT)
    assert frozen.wait() == START_AGAIN_EXIT
    await_completion(others[0], responses)
    assert [server.has_ended for server in others] == [False] * 2
    assert fleet(database_url)[:2] == (2, 1)
    tally["F28", "replicas frozen alone for three leases, whose work others finished"] += 1


def test_a_replica_whose_interpreter_stalls_for_four_leases_keeps_its_lease(
    start_server: StartServer, database_url: str, tally: Tally
) -> None:
    start_server(**PACE)
    seconds = round(OUTAGE_LEASES * LEASE_S)
    module = ("tests.support.stalling_server", str(seconds))
    stalled = ServerProcess(database_url, settings=PACE, module=module)
    try:
        stalled.start()
        responses = begin([stalled], each=4)
        os.kill(stalled.pid, signal.SIGUSR2)
        eventually(lambda: "the interpreter stood still for" in stalled.said(), within=PATIENCE_S)
        await_completion(stalled, responses)
        assert not stalled.has_ended
        assert fleet(database_url) == (2, 0, 0)
    finally:
        stalled.stop()
    tally["F29", "stalls of the interpreter for four leases, without a lease lost"] += 1
