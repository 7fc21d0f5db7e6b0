"""F52: a right, a column or the writes of a session are missing for a while, under a queue and runs.

Nothing that is stored ends for it, no process ends, readiness says why, and everything completes afterwards.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import monotonic

import httpx
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.fix_cluster import Cluster
from tests.fix_server import SCRIPTED, StartServerOn
from tests.fix_tally import Tally
from tests.support.attached import HTTP, PATIENCE_S
from tests.support.eventually import eventually
from tests.support.invariants import check
from tests.support.server_process import MODEL, ServerProcess, run_command

LEASE_S = 5.0
RUNNING, QUEUED = 10, 50
SPARE = 5
"""Responses that may run beside those in progress, so that the queue is read all the time."""
PACE: dict[str, object] = {
    "scripted_tokens": 5000,
    "scripted_step_seconds": 0.02,
    "max_running": RUNNING + SPARE,
    "lease_seconds": LEASE_S,
}
SOON_S = 120.0
KILLS, MANY_QUEUED = 20, 2000


@dataclass(frozen=True)
class Served:
    owner: psycopg.Connection
    server: ServerProcess

    def create(self, tokens: int, count: int) -> None:
        """Background responses of so many tokens."""
        body = {"model": MODEL, "input": "Hello", "background": True, "max_output_tokens": tokens}
        for _ in range(count):
            HTTP.post(f"{self.server.api}/responses", json=body).raise_for_status()

    def statuses(self) -> Counter[str]:
        rows = self.owner.execute("select status, count(*) from responses group by 1").fetchall()
        return Counter(dict(rows))

    def readiness(self) -> str | None:
        """The reason of a server that is not ready."""
        answer = httpx.get(f"{self.server.url}/health/ready", timeout=PATIENCE_S)
        return None if answer.status_code == 200 else str(answer.json()["reason"])


@pytest.fixture
def served(own_database_url: str) -> Iterator[Served]:
    """A server whose user may change rows only, with ten responses in progress and fifty in the queue."""
    assert run_command("db", "roles", database_url=own_database_url).returncode == 0
    role = f"server_of_{conninfo_to_dict(own_database_url)['dbname']}"
    made = run_command("db", "create-user", role, "--as", "server", database_url=own_database_url)
    assert made.returncode == 0, made.stderr
    with psycopg.connect(own_database_url, autocommit=True) as owner:
        url = own_database_url.replace("//postgres@", f"//{role}:{made.stdout.strip()}@")
        server = ServerProcess(url, settings={**SCRIPTED, **PACE})
        try:
            server.start()
            served = Served(owner, server)
            served.create(1500, RUNNING)
            served.create(200, QUEUED)
            yield served
        finally:
            server.stop()
    check(own_database_url)


def hold(served: Served, seconds: float) -> set[str]:
    """Watches for so long that nothing ends wrongly; returns the reasons of an unready server."""
    reasons, until = set(), monotonic() + seconds
    while monotonic() < until:
        assert not served.server.has_ended
        assert served.statuses()["failed"] == 0
        reason = served.readiness()
        reasons.add(reason or "ready")
    return reasons


def check_completes(served: Served, tally: Tally, fault: str) -> None:
    eventually(lambda: served.statuses() == {"incomplete": RUNNING + QUEUED}, within=SOON_S)
    eventually(lambda: served.readiness() is None, within=PATIENCE_S)
    assert not served.server.has_ended
    assert served.owner.execute("select sum(deaths) from responses").fetchone() == (0,)
    tally["F52", f"responses that completed after {fault}"] += RUNNING + QUEUED


@pytest.mark.faults
@pytest.mark.parametrize("table", ["response_events_hot", "items"])
def test_nothing_ends_while_a_right_is_missing(served: Served, table: str, tally: Tally) -> None:
    served.owner.execute(f"revoke select on {table} from holdfast_server")  # noqa: S608 - of this test
    try:
        assert hold(served, 10.0) != {"ready"}
    finally:
        served.owner.execute(f"grant select on {table} to holdfast_server")
    check_completes(served, tally, "a missing right")


@pytest.mark.faults
@pytest.mark.parametrize("column", ["response_events_hot.token_ids", "items.payload", "responses.request"])
def test_nothing_ends_while_a_column_is_missing(served: Served, column: str, tally: Tally) -> None:
    table, name = column.split(".")
    served.owner.execute(f"alter table {table} rename {name} to {name}_")
    try:
        hold(served, 30.0)
    finally:
        served.owner.execute(f"alter table {table} rename {name}_ to {name}")
    check_completes(served, tally, "a missing column")


@pytest.mark.faults
def test_nothing_ends_while_sessions_are_read_only(
    served: Served, own_cluster: Cluster, tally: Tally
) -> None:
    def set_read_only(value: str) -> None:
        with psycopg.connect(own_cluster.url, autocommit=True) as administrator:
            administrator.execute("set session characteristics as transaction read write")
            administrator.execute(f"alter system set default_transaction_read_only = {value}")
            administrator.execute("select pg_reload_conf()")

    set_read_only("on")
    try:
        eventually(lambda: "takes no writes" in str(served.readiness()), within=2 * LEASE_S)
        assert "ready" not in hold(served, 60.0)
    finally:
        set_read_only("off")
    check_completes(served, tally, "sessions that were read-only")


@pytest.mark.faults
def test_twenty_kills_in_a_row_end_none_of_two_thousand_queued_responses(
    own_database_url: str, start_server_on: StartServerOn, tally: Tally
) -> None:
    server = start_server_on(own_database_url, **{**PACE, "max_running": 64, "lease_seconds": 2})
    with psycopg.connect(own_database_url, autocommit=True) as owner:
        served = Served(owner, server)
        served.create(40, MANY_QUEUED)
        for _ in range(KILLS):
            busy: Callable[[], bool] = lambda: served.statuses()["in_progress"] > 0  # noqa: E731
            eventually(busy, within=PATIENCE_S)
            server.restart()
        eventually(lambda: served.statuses() == {"incomplete": MANY_QUEUED}, within=600.0)
    tally["F52", "kills in a row under a long queue"] += KILLS
    tally["F52", "queued responses that completed after them"] += MANY_QUEUED
