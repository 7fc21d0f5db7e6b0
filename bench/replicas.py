"""What replicas cost each other: 50 on one Postgres, 2,000 running responses, 100 of them followed elsewhere.

Their notifiers, heartbeats, claimers and followers are the real ones; there are no recorders.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import UUID

import psycopg

from bench.rounds import tell
from server.embedded_postgres.embedded_server import EmbeddedPostgres
from server.protocol.ids import new_uuid
from server.store.schema.upgrade import upgrade

REPLICAS = 50
PROCESSES = 5
RUNNING = 40
"""Responses that a replica runs."""
FOLLOWED = (0, 2)
"""Responses of others that it follows, one measurement each."""
SECONDS = 6.0
WARM_UP_SECONDS = 4.0
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "2"))
GOAL = "<=0.02"
"""Of a core, for each replica, its share of Postgres included."""
HERE = Path(__file__).resolve().parents[1]

_INSERT = """
    insert into responses (tenant, id, status, background, stream, model, replica_id, seed, created_at,
                           started_at, request, metadata, size, kind, turn)
    select 'default', id, 'in_progress', false, true, 'm', %s, 1, now(), now(), '{}', '{}', 100, 'response', 1
    from unnest(%s::uuid[]) as id
"""
_REGISTER = """
    insert into replicas (id, state, host, pid, version, revision, models, started_at, heartbeat_at)
    values (%s, 'alive', 'h', 1, 'v', '0001', '{m}', now(), now())
"""


def run() -> None:
    """A replica's CPU and its share of Postgres' for hints, heartbeats and claims, of a core; minutes."""
    costs: dict[int, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        Path(folder).chmod(0o711)
        options = {"max_connections": "600"}
        with EmbeddedPostgres(Path(folder) / "data", options=options) as postgres:
            upgrade(postgres.url)
            for _ in range(ROUNDS):
                for followed in FOLLOWED:
                    costs.setdefault(followed, []).append(_measure(postgres, followed))
    for followed, cores in costs.items():
        tell(f"of a core, a replica that follows {followed} responses of others", cores, GOAL)


def _measure(postgres: EmbeddedPostgres, followed: int) -> float:
    """The CPU of a replica and of Postgres for it, in cores."""
    with ExitStack() as stack:
        parts = _settings(postgres.url, followed)
        fleets = [stack.enter_context(_fleet(settings)) for settings in parts]
        for fleet in fleets:
            _expect_line(fleet)
        time.sleep(WARM_UP_SECONDS)
        before = _postgres_cpu_seconds(postgres.url)
        for fleet in fleets:
            _send(fleet, "measure")
        own = sum(float(_expect_line(fleet)) for fleet in fleets)
        of_postgres = _postgres_cpu_seconds(postgres.url) - before
    cores = own / SECONDS / REPLICAS, of_postgres / SECONDS / REPLICAS
    shown = f"a replica {cores[0]:.2%} and Postgres for it {cores[1]:.2%} of a core"
    print(f"  following {followed}: {shown}", flush=True)
    return sum(cores)


def _settings(url: str, followed: int) -> Iterator[dict[str, object]]:
    """A fresh fleet's, by process; its responses are in the database."""
    ids = [new_uuid() for _ in range(REPLICAS)]
    running = {me: [new_uuid() for _ in range(RUNNING)] for me in ids}
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("truncate responses, replicas cascade")
        for me in ids:
            connection.execute(_REGISTER, [me])
            connection.execute(_INSERT, [me, running[me]])
        connection.execute("vacuum analyze responses")
    choose = random.Random(1)  # noqa: S311
    for start in range(PROCESSES):
        fleet = []
        for me in ids[start::PROCESSES]:
            others = choose.sample([other for other in ids if other != me], followed)
            theirs = [choose.choice(running[other]) for other in others]
            fleet.append({"id": str(me), "running": _names(running[me]), "followed": _names(theirs)})
        yield {"url": url, "seconds": SECONDS, "replicas": fleet}


def _names(ids: list[UUID]) -> list[str]:
    return [str(one) for one in ids]


@contextmanager
def _fleet(settings: dict[str, object]) -> Iterator["subprocess.Popen[str]"]:
    """A process with these replicas."""
    command = [sys.executable, "-P", str(HERE / "bench" / "replica_fleet.py")]
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=HERE, env=environment
    )
    try:
        _send(process, json.dumps(settings))
        yield process
    finally:
        process.kill()
        process.wait()


def _send(process: "subprocess.Popen[str]", line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def _expect_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "a part of the fleet has ended"
    return line


def _postgres_cpu_seconds(url: str) -> float:
    """Of the postmaster and its processes, those that have ended included."""
    with psycopg.connect(url) as connection:
        row = connection.execute("select pg_backend_pid()").fetchone()
        assert row is not None
        postmaster = _stat(row[0])[1]
    ticks = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (found := _stat(int(entry.name))):
            own, children = int(found[11]) + int(found[12]), int(found[13]) + int(found[14])
            if entry.name == postmaster:
                ticks += own + children
            elif found[1] == postmaster:
                ticks += own
    return ticks / os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name; empty for a process that has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
