"""F47: Postgres is killed while the recorder waits for its engine, and loses what clients have received."""

import os
import random
import signal
from collections.abc import Sequence
from contextlib import closing
from time import monotonic

import psycopg
import pytest

from server.protocol.ids import parse_response_id
from tests.fix_cluster import Cluster
from tests.fix_server import StartServer, StartServerOn
from tests.fix_tally import Tally
from tests.support.attached import Attached, Crowd, ask, check_one, uncut
from tests.support.eventually import eventually
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.faults

STREAMS = 25
TOKENS = 12
STEP_S = 3.0
"""Between two tokens, and so between two commits."""
CRASHES = (2, 5, 9)
"""Tokens that each client has when Postgres dies."""
PATIENCE_S = 120.0


@pytest.mark.parametrize("durability", ["normal", "strict"])
def test_nothing_is_missing_when_postgres_dies_beside_an_idle_recorder(
    lossy_cluster: Cluster,
    start_server: StartServer,
    start_server_on: StartServerOn,
    durability: str,
    tally: Tally,
) -> None:
    url = lossy_cluster.new_database()
    server = start_server_on(
        url, durability=durability, scripted_tokens=TOKENS, scripted_step_seconds=STEP_S, lease_seconds=60
    )
    choose = random.Random(0)
    lost = 0
    with Crowd(lambda: server) as crowd:
        crowd.start(*(Attached(ask(number, choose, background=number % 2 == 0)) for number in range(STREAMS)))
        for tokens in CRASHES:
            await_tokens(crowd.clients, tokens)
            lost += crash_beside(server, lossy_cluster, url, crowd.clients, tally)
        crowd.finish(PATIENCE_S)
    quick = start_server(scripted_tokens=TOKENS)
    for client, text in zip(crowd.clients, uncut(quick, [one.body for one in crowd.clients]), strict=True):
        check_one(client, server, text)
        assert client.final["status"] == "completed"
    assert (lost > 0) is (durability == "normal")
    tally["F47", f"responses whole, {durability}"] += STREAMS
    tally["F47", f"events that Postgres had lost, {durability}"] += lost


def await_tokens(clients: Sequence[Attached], tokens: int) -> None:
    """Until each client has received so many deltas of text."""
    delta = b"event: response.output_text.delta"
    eventually(lambda: all(one.received.count(delta) >= tokens for one in clients), within=PATIENCE_S)


def crash_beside(
    server: ServerProcess, cluster: Cluster, url: str, clients: Sequence[Attached], tally: Tally
) -> int:
    """Kills Postgres and starts it; returns the number of events that clients have received and it has lost.

    The server is frozen until they are counted, as it would write them again.
    """
    began = monotonic()
    os.killpg(server.pid, signal.SIGSTOP)
    cluster.crash()
    cluster.start()
    lost = sum(max(0, one.received.count(b"\n\n") - stored_events(url, one.response_id)) for one in clients)
    os.killpg(server.pid, signal.SIGCONT)
    took = round(1000 * (monotonic() - began))
    tally["F47", "ms of the longest outage"] = max(tally["F47", "ms of the longest outage"], took)
    tally["F47", "crashes of Postgres beside an idle recorder"] += 1
    return lost


def stored_events(url: str, name: str) -> int:
    query = "select max(first_seq + n) from response_events_hot where response_id = %s"
    with closing(psycopg.connect(url)) as connection:
        row = connection.execute(query, [parse_response_id(name)]).fetchone()
    return 0 if row is None or row[0] is None else int(row[0])
