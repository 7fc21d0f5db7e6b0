"""F30: PgBouncer in transaction mode between two replicas and Postgres is killed, paused, full and cut off.

Both releases with their default settings, with and without a direct URL for what needs sessions.
"""

import json
import threading
from collections.abc import Callable
from contextlib import ExitStack, closing

import psycopg
import pytest

from tests.faults.test_takeovers import PACE as SHORT
from tests.faults.test_takeovers import kill_by_turns
from tests.fix_pgbouncer import StartPgBouncer, pooled
from tests.fix_server import Connect, StartServerOn
from tests.fix_tally import Tally
from tests.support.erasing import Client, Json, fill, traces
from tests.support.eventually import eventually
from tests.support.pgbouncer import VERSIONS, PgBouncer
from tests.support.server_process import MODEL, environment, run_module
from tests.support.traffic import Traffic, check_answers, check_store, check_streams
from tests.support.webhook_receiver import WebhookReceiver

pytestmark = pytest.mark.faults
versions = pytest.mark.parametrize("version", VERSIONS)
directness = pytest.mark.parametrize("direct", [False, True], ids=["pooler only", "with a direct URL"])
PACE = {"scripted_tokens": 5000, "scripted_step_seconds": 0.02, "lease_seconds": 10}
TOKENS = 600
"""Of each stream: twelve seconds and more."""
TROUBLE_S = 3.0
TIMES = 3
CHAINS = 12
TENANT = "gone-k7q"
SMALL_POOL = {"default_pool_size": 2, "query_wait_timeout": 1}
IDLE = """
    select pg_terminate_backend(pid) from pg_stat_activity
    where datname = current_database() and pid <> pg_backend_pid() and state = 'idle'
"""


@versions
@directness
def test_readers_of_the_replica_that_is_left_see_unbroken_streams(
    version: str,
    direct: bool,
    database_url: str,
    start_pgbouncer: StartPgBouncer,
    start_server_on: StartServerOn,
    tally: Tally,
) -> None:
    settings = {
        **SHORT,
        "lease_seconds": 2,
        **_behind(start_pgbouncer(database_url, version), database_url, direct),
    }
    one, other = (start_server_on(database_url, **settings) for _ in range(2))
    kill_by_turns(one, other, 1, 4, tally)


@versions
@directness
def test_chains_and_cancels_hold_on_both_replicas(
    version: str,
    direct: bool,
    database_url: str,
    start_pgbouncer: StartPgBouncer,
    start_server_on: StartServerOn,
    connect: Connect,
    tally: Tally,
) -> None:
    settings = {**PACE, **_behind(start_pgbouncer(database_url, version), database_url, direct)}
    servers = [start_server_on(database_url, **settings) for _ in range(2)]
    clients = [connect(server) for server in servers]
    previous, context = None, 0
    for number in range(CHAINS):
        here, there = clients[number % 2], clients[(number + 1) % 2]
        made = here.responses.create(
            model=MODEL, input=f"Turn {number}", previous_response_id=previous, max_output_tokens=5
        )
        assert there.responses.retrieve(made.id).to_dict() == made.to_dict()
        assert made.usage is not None
        assert made.usage.input_tokens > context, "the history has grown by a turn"
        previous, context = made.id, made.usage.input_tokens
        running = here.responses.create(model=MODEL, input="Go on", background=True)
        assert there.responses.cancel(running.id).id == running.id
        eventually(lambda: here.responses.retrieve(running.id).status == "cancelled", within=10)  # noqa: B023
        tally["F30", "chains and cancels"] += 1


@versions
@directness
def test_webhooks_exports_and_erasures_go_through_the_pooler(
    version: str,
    direct: bool,
    database_url: str,
    start_pgbouncer: StartPgBouncer,
    start_server_on: StartServerOn,
) -> None:
    behind = _behind(start_pgbouncer(database_url, version), database_url, direct)

    def run(*arguments: str, **more: object) -> str:
        ran = run_module(["server", *arguments], environment(None, {**behind, **more}))
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    key = run("keys", "create", "--tenant", TENANT).strip()
    with WebhookReceiver() as receiver:
        hosts = {"webhook_hosts": f"http://127.0.0.1:{receiver.port}"}
        made = run("webhooks", "create", "--tenant", TENANT, "--all-responses", receiver.url, **hosts)
        receiver.secret = next(word for word in made.split() if word.startswith("whsec_"))
        server = start_server_on(database_url, engine="scripted", **behind, **hosts)
        with closing(Client(server.api, key, TENANT)) as client:
            ids = fill(client)
            eventually(lambda: receiver.arrivals.received[ids["then"]] == 1, within=30)
        assert not receiver.arrivals.problems
    exported = [json.loads(line) for line in run("export", "--tenant", TENANT).splitlines()]
    assert exported[-1]["object"] == "end"
    assert {ids["first"], ids["then"], ids["spoken"]} <= {f"resp_{one}" for one in _ids_of(exported)}
    run("erase", "--tenant", TENANT, "--yes")
    assert traces(database_url, TENANT, *ids.values()) == []


def _ids_of(exported: list[Json]) -> set[str]:
    return {line["id"].replace("-", "") for line in exported if line["object"] == "response"}


Trouble = Callable[[PgBouncer, str], None]


def killed(pooler: PgBouncer, _url: str) -> None:
    pooler.kill()
    threading.Event().wait(1.0)
    pooler.start()


def paused(pooler: PgBouncer, _url: str) -> None:
    pooler.console("PAUSE")
    threading.Event().wait(TROUBLE_S)
    pooler.console("RESUME")


def full(pooler: PgBouncer, _url: str) -> None:
    """Others hold every session of the pool."""
    with ExitStack() as stack:
        for _ in range(SMALL_POOL["default_pool_size"]):
            holder = stack.enter_context(psycopg.connect(pooler.url, prepare_threshold=None))
            eventually(lambda: _begins(holder))  # noqa: B023 - it may be kept waiting, too
        threading.Event().wait(TROUBLE_S)


def _begins(holder: psycopg.Connection) -> bool:
    holder.execute("select 1")
    return True


def cut(_pooler: PgBouncer, url: str) -> None:
    """Sessions of the pool end between two transactions."""
    with psycopg.connect(url, autocommit=True) as administrator:
        for _ in range(int(TROUBLE_S * 10)):
            administrator.execute(IDLE)
            threading.Event().wait(0.1)


@versions
@directness
@pytest.mark.parametrize("trouble", [killed, paused, full, cut])
def test_nothing_is_lost_while_the_pooler_is_in_trouble(
    version: str,
    direct: bool,
    trouble: Trouble,
    database_url: str,
    start_pgbouncer: StartPgBouncer,
    start_server_on: StartServerOn,
    tally: Tally,
) -> None:
    pooler = start_pgbouncer(database_url, version, **(SMALL_POOL if trouble is full else {}))
    settings = {**PACE, **_behind(pooler, database_url, direct)}
    one, other = (start_server_on(database_url, **settings) for _ in range(2))
    with Traffic(one, tokens=TOKENS) as traffic:
        followed = traffic.followed[0].response_id
        for _ in range(TIMES):
            trouble(pooler, database_url)
            tally["F30", f"times the pooler was {trouble.__name__}"] += 1
            before = len(traffic.created)
            eventually(lambda: len(traffic.created) >= before + 10, within=30)  # noqa: B023
    check_streams(traffic, other)
    for status, count in check_answers(traffic).items():
        tally["F30", f"requests answered {status}"] += count
    check_store(traffic, other, database_url)
    assert followed is not None
    for server in (one, other):
        assert not server.has_ended, "a pooler's trouble costs no replica its life"
    longest = f"ms of a stream's longest pause, {trouble.__name__}, {'direct' if direct else 'pooled'}"
    tally["F30", longest] = max(round(1000 * one.longest_pause) for one in traffic.followed)


def _behind(pooler: PgBouncer, database_url: str, direct: bool) -> dict[str, object]:
    return pooled(pooler, database_url if direct else None)
