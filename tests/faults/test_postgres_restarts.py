"""F3: Postgres stops, crashes and cuts its connections while clients stream, create and read.

The cluster is one of these tests' own and waits for the disk, as in earnest.
"""

import os
import signal
from threading import Event

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.fix_cluster import Cluster, Mode
from tests.fix_server import StartServerOn
from tests.fix_tally import Tally
from tests.support.eventually import eventually
from tests.support.traffic import Traffic, check_answers, check_store, check_streams

RESTARTS = 3
CUTTING_S = 20.0
ABSORBED = "a commit that was not answered had happened"
PAUSE_S = 5.0
"""The longest silence of a live stream."""
STANDSTILL_S = 10.0
"""The same where a commit stands still: it is waited for before it is given up."""

SLOW_COMMITS = {"commit_delay": 100_000, "commit_siblings": 0}
"""Every commit takes a tenth of a second: long enough to be stopped in the middle of one."""
PATIENCE_S = 30.0

OTHERS = "from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
PACE = {"scripted_tokens": 5000, "scripted_step_seconds": 0.02, "lease_seconds": 10}


def check(traffic: Traffic, database_url: str, tally: Tally, through: str, pause_s: float = PAUSE_S) -> None:
    check_streams(traffic, traffic.server)
    told = check_answers(traffic)
    untold = check_store(traffic, traffic.server, database_url)
    absorbed = traffic.server.said().count(ABSORBED)
    for status, count in told.items():
        tally["F3", f"requests answered {status}"] += count
    tally["F3", "commits in doubt that had happened"] += absorbed
    tally["F3", "responses stored whose clients were not told"] += untold
    tally["F3", "streams followed"] += len(traffic.followed)
    longest = f"ms of a stream's longest pause through {through}"
    pause = max(one.longest_pause for one in traffic.followed)
    tally["F3", longest] = max(tally["F3", longest], round(1000 * pause))
    assert pause <= pause_s


@pytest.mark.faults
@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_nothing_is_lost_when_postgres_restarts(
    own_cluster: Cluster, own_database_url: str, start_server_on: StartServerOn, mode: Mode, tally: Tally
) -> None:
    server = start_server_on(own_database_url, **PACE)
    with Traffic(server, tokens=400 * RESTARTS) as traffic:
        for _ in range(RESTARTS):
            own_cluster.stop(mode)
            own_cluster.start()
            tally["F3", f"{mode} restarts of Postgres"] += 1
            before = len(traffic.created)
            while len(traffic.created) < before + 20:
                Event().wait(0.01)
    check(traffic, own_database_url, tally, f"{mode} restarts")


@pytest.mark.faults
def test_nothing_is_lost_when_connections_are_cut_ten_times_a_second(
    own_database_url: str, start_server_on: StartServerOn, tally: Tally
) -> None:
    server = start_server_on(own_database_url, **PACE)
    with (
        psycopg.connect(own_database_url, autocommit=True) as administrator,
        Traffic(server, tokens=int(50 * CUTTING_S)) as traffic,
    ):
        for _ in range(int(CUTTING_S * 10)):
            cut = administrator.execute(f"select pg_terminate_backend(pid) {OTHERS}")
            tally["F3", "connections cut"] += cut.rowcount
            Event().wait(0.1)
    check(traffic, own_database_url, tally, "cut connections")


@pytest.mark.faults
def test_a_commit_that_happens_after_it_was_given_up_is_not_made_twice(
    own_database_url: str, start_server_on: StartServerOn, tally: Tally
) -> None:
    with psycopg.connect(own_database_url, autocommit=True) as administrator:
        name = conninfo_to_dict(own_database_url)["dbname"]
        for setting, value in SLOW_COMMITS.items():
            administrator.execute(f"alter database {name} set {setting} = {value}")
        server = start_server_on(own_database_url, **PACE, durability="strict")
        with Traffic(server, tokens=300, writers=0, readers=0) as traffic:
            pid = eventually(lambda: committing(administrator))
            os.kill(pid, signal.SIGSTOP)
            try:
                eventually(lambda: "commit failed" in server.said(), within=PATIENCE_S)
                eventually(lambda: waiting_for(administrator, pid), within=PATIENCE_S)
            finally:
                os.kill(pid, signal.SIGCONT)
    assert ABSORBED in server.said()
    tally["F3", "commits that happened after they were given up"] += 1
    check(traffic, own_database_url, tally, "a commit that stands still", STANDSTILL_S)


def committing(administrator: psycopg.Connection) -> int:
    """The recorder's backend, if it is in the middle of a commit; else 0."""
    row = administrator.execute(
        "select pid from pg_stat_activity where application_name like 'holdfast recorder %%'"
        " and datname = current_database() and state = 'active' and query ilike 'commit%'"
    ).fetchone()
    return int(row[0]) if row else 0


def waiting_for(administrator: psycopg.Connection, pid: int) -> bool:
    """Whether the recorder, on a new connection, waits for what it wrote on that one."""
    found = administrator.execute(
        "select 1 from pg_stat_activity"
        " where application_name like 'holdfast recorder %%' and %s = any(pg_blocking_pids(pid))",
        [pid],
    )
    return found.fetchone() is not None
