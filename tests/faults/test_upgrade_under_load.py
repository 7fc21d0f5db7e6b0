"""F44: a later schema comes beside traffic, a dump, a long reader and old replicas; no client sees it.

Then the replicas are replaced one by one, and after that the release and its schema are taken back.
"""

import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from random import Random
from time import monotonic

import httpx
import psycopg
import pytest
from openai import OpenAI

from bench.rows import fill, read_model
from server.embedded_postgres.embedded_server import EmbeddedPostgres
from server.protocol.ids import parse_response_id
from server.store.schema.upgrade import newest_revision, upgrade
from tests.fix_postgres import temporary_database
from tests.fix_tally import Tally
from tests.support.balancer import Balancer
from tests.support.eventually import eventually
from tests.support.postgres_versions import programs
from tests.support.releases import LATER_REVISIONS, run_release, start_command
from tests.support.sdk_load import Answer, Load, ask
from tests.support.server_process import MODEL, REPOSITORY, ServerProcess, run_command

RESPONSES = 100_000
CHAINS = 1_000
"""Of two turns each, among them."""
TRIES = 3
"""Times that the upgrade must have tried to lock a table while the dump and the reader are in its way."""
PATIENCE_S = 120.0
UPGRADE_S = "600"
SETTINGS: dict[str, object] = {
    "engine": "scripted",
    "scripted_tokens": 120,
    "scripted_step_seconds": 0.05,  # six seconds: a cancellation that a lock delays still finds it running
    "allowed_hosts": "127.0.0.1",
    "shutdown_delay_seconds": 3,
}
MOST_STALL_S = 10.0
"""Far from a client's patience, and from a lease."""
TRYING = """
    select query_start from pg_stat_activity
    where datname = current_database() and wait_event_type = 'Lock'
      and pid in (select pid from pg_locks where locktype = 'advisory' and granted)
"""
BESIDE = "select 1 from pg_locks l join pg_stat_activity a using (pid) where a.application_name = %s and {}"


@pytest.fixture
def url(cluster: EmbeddedPostgres) -> Iterator[str]:
    with temporary_database(cluster, "upgrade") as name:
        yield cluster.url_of(name)


@dataclass
class Upgraded:
    """A database, the replicas on it, and clients that never stop asking."""

    url: str
    balancer: Balancer
    load: Load

    def go_on(self, seconds: float = 2.0) -> None:
        threading.Event().wait(seconds)
        self.load.check()

    def start(self, server: ServerProcess) -> None:
        server.start()
        eventually(lambda: server.port in self.balancer.ready, within=PATIENCE_S)
        self.go_on()

    def stop(self, server: ServerProcess) -> None:
        server.ask_to_end()
        assert server.wait() == 0
        self.go_on()

    def change(self, folder: Path, *arguments: str) -> None:
        """A release's command that changes the schema, under load."""
        ended = run_release(folder, self.url, "db", *arguments, "--wait", UPGRADE_S)
        assert ended.returncode == 0, ended.stderr
        self.go_on()


def in_conversation(client: OpenAI, choose: Random) -> list[Answer]:
    """Responses that add to a conversation, which must have all their items."""
    conversation = client.conversations.create().id
    for _ in range(2):
        answer = client.responses.create(**ask(choose), conversation=conversation)
        assert answer.status == "completed", answer
    assert len(client.conversations.items.list(conversation).data) == 4
    return []


def fill_database(url: str, server: ServerProcess) -> None:
    """Single responses and chains, with items, streams and entries of the ledger, as a server writes them."""

    def create(**more: object) -> str:
        body = {"model": MODEL, "input": "What is there to say?", "max_output_tokens": 24, **more}
        identifier: str = httpx.post(f"{server.api}/responses", json=body, timeout=60).json()["id"]
        return identifier

    names = [create()]
    names.append(create(previous_response_id=names[0]))
    first, later = map(parse_response_id, names)
    assert first is not None
    assert later is not None
    with psycopg.connect(url, autocommit=True) as connection:
        lengths = [2] * CHAINS + [1] * (RESPONSES - 2 * CHAINS)
        models = read_model(connection, first), read_model(connection, later, first)
        fill(connection, *models, lengths, apart=timedelta(0))
        connection.execute("vacuum analyze")


@contextmanager
def dump(url: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A `pg_dump` that has locked every table and reads on when its output is taken."""
    directory = programs(18)
    assert directory is not None
    command = [str(directory / "pg_dump"), "--format=plain", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        wait_for_locks(url, "pg_dump")
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def long_reader(url: str) -> Iterator[psycopg.Connection]:
    """A report that has begun on one snapshot."""
    with psycopg.connect(url, application_name="report") as connection:
        connection.execute("set transaction isolation level repeatable read")
        connection.execute("select count(*) from responses join items on items.response_id = responses.id")
        wait_for_locks(url, "report")
        yield connection


def wait_for_locks(url: str, name: str) -> None:
    locked = BESIDE.format("l.relation = 'responses'::regclass").encode()
    with psycopg.connect(url, autocommit=True) as connection:
        eventually(lambda: connection.execute(locked, [name]).fetchone(), within=PATIENCE_S)


def upgrade_beside(upgraded: Upgraded, later: Path) -> float:
    """The later release's upgrade, which the dump and the reader hold up first; its seconds."""
    began = monotonic()
    with dump(upgraded.url) as dumping, long_reader(upgraded.url) as report:
        upgrading = start_command(later, upgraded.url, "db", "upgrade", "--wait", UPGRADE_S)
        tries: set[tuple[object, ...]] = set()
        with psycopg.connect(upgraded.url, autocommit=True) as connection:
            while len(tries) < TRIES:
                assert upgrading.poll() is None, upgrading.communicate()
                tries.update(connection.execute(TRYING).fetchall())
                upgraded.go_on(0.1)
        status = run_command("db", "status", database_url=upgraded.url).stdout
        assert "pg_dump of" in status
        assert "report of" in status
        assert dumping.stdout is not None
        size = 0
        while block := dumping.stdout.read(1 << 20):
            size += len(block)
        assert dumping.wait() == 0
        assert size > RESPONSES * 1000
        report.rollback()
    _, said = upgrading.communicate(timeout=PATIENCE_S)
    assert (upgrading.returncode, said[-24:]) == (0, " The schema is current.\n")
    upgraded.go_on()
    return monotonic() - began


@pytest.mark.faults
def test_an_upgrade_beside_old_replicas_a_dump_and_a_long_reader_is_seen_by_no_client(
    url: str, later_folder: Path, tally: Tally
) -> None:
    upgrade(url)
    with ExitStack() as stack:
        old = [ServerProcess(url, settings=SETTINGS) for _ in range(2)]
        new = [
            ServerProcess(url, settings=SETTINGS, module=("server",), folder=later_folder) for _ in range(2)
        ]
        for server in (*old, *new):
            stack.callback(server.stop)
        for server in old:
            server.start()
        fill_database(url, old[0])
        balancer = stack.enter_context(Balancer([server.port for server in (*old, *new)]))
        eventually(lambda: len(balancer.ready) == len(old), within=PATIENCE_S)
        load = Load(balancer.url, each=2, more=[in_conversation])
        stack.callback(load.stop)
        upgraded = Upgraded(url, balancer, load)
        seconds = {"before": quiet(upgraded), "upgrade": upgrade_beside(upgraded, later_folder)}
        restart_on_newer_schema(upgraded, old[0])
        for server in new:
            upgraded.start(server)
        for server in old:
            upgraded.stop(server)
        take_back(upgraded, later_folder, old, new)
        answers = load.finish()
        assert balancer.refused == 0
        for server in (*old, *new):
            assert "Traceback" not in server.said()
    for arguments in (["--quick"], ["--limit", str(len(answers) + 1000)]):
        ended = run_release(REPOSITORY, url, "audit", *arguments)
        assert ended.returncode == 0, ended.stderr
    report(load, seconds, len(answers), tally)


def quiet(upgraded: Upgraded) -> float:
    """Load without anything else, to compare with."""
    upgraded.go_on(10.0)
    return 10.0


def restart_on_newer_schema(upgraded: Upgraded, server: ServerProcess) -> None:
    """A replica of the release before restarts between the steps of the upgrade."""
    upgraded.stop(server)
    upgraded.start(server)
    assert "a newer release made the schema" in server.said()


def take_back(
    upgraded: Upgraded, later: Path, old: Sequence[ServerProcess], new: Sequence[ServerProcess]
) -> None:
    """Replicas of the release before take the places of the newer ones; then the schema goes back."""
    for server in old:
        upgraded.start(server)
    for server in new:
        upgraded.stop(server)
    for _ in LATER_REVISIONS:
        upgraded.change(later, "downgrade", "--yes")
    status = run_command("db", "status", database_url=upgraded.url).stdout
    assert f"{newest_revision()}\tthis release's" in status


def report(load: Load, seconds: dict[str, float], answers: int, tally: Tally) -> None:
    """The longest turn of a client beside a usual one, by kind."""
    tally["F44", "requests that saw nothing of an upgrade"] += answers
    tally["F44", "seconds of the upgrade, dump and reader in its way"] = round(seconds["upgrade"])
    stalls = {}
    for kind in sorted(load.counts):
        took = sorted(ended - began for name, began, ended in load.turns if name == kind)
        stalls[kind] = took[-1] - took[len(took) // 2]
        tally["F44", f"ms that the slowest took longer than the middle one: {kind}"] = round(
            1000 * stalls[kind]
        )
    assert max(stalls.values()) < MOST_STALL_S, stalls
