"""F15: the disk of the embedded Postgres fills up, and has room again."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest

from tests.acceptance.error_object import check_error
from tests.fix_cluster import SmallDisk
from tests.fix_server import SCRIPTED
from tests.fix_tally import Tally
from tests.support.eventually import eventually
from tests.support.invariants import check
from tests.support.server_process import MODEL, ServerProcess
from tests.support.traffic import Traffic, check_answers, check_replay, check_store

RESUMED_S = 30.0
"""How long after there is room again new responses may be refused."""
PATIENCE_S = 60.0
PACE = {"scripted_tokens": 5000, "scripted_step_seconds": 0.02, "database_connections": 4}
HELLO = {"model": MODEL, "input": "Hello", "max_output_tokens": 3}


@pytest.fixture
def data_dir(small_disk: SmallDisk) -> Path:
    return small_disk.home / "data"


@pytest.fixture
def server(data_dir: Path) -> Iterator[ServerProcess]:
    """One that has no reserve on its disk, so that nothing protects it."""
    server = ServerProcess(settings={**SCRIPTED, **PACE, "data_dir": data_dir, "disk_reserve": 0})
    try:
        server.start()
        yield server
    finally:
        server.stop()


def database_of(data_dir: Path) -> str:
    return f"postgresql://postgres@/holdfast?host={data_dir / 'run'}&port=5432"


def is_creating(server: ServerProcess) -> bool:
    return httpx.post(f"{server.api}/responses", json=HELLO, timeout=PATIENCE_S).status_code == 200


@pytest.mark.faults
@pytest.mark.parametrize("what", ["tables", "log"])
def test_nothing_acknowledged_is_lost_when_the_disk_is_full(
    server: ServerProcess, small_disk: SmallDisk, data_dir: Path, what: str, tally: Tally
) -> None:
    database_url = database_of(data_dir)
    with Traffic(server, tokens=4000) as traffic:
        small_disk.fill()
        if what == "log":
            fill_the_log(database_url)
            eventually(lambda: "PANIC" in said_by_postgres(data_dir), within=PATIENCE_S)
        eventually(lambda: "commit failed" in server.said(), within=PATIENCE_S)
        small_disk.empty()
        eventually(lambda: is_creating(server), within=RESUMED_S)
        traffic.leave()
    check_answers(traffic)
    check_store(traffic, server, database_url)
    for one in traffic.followed:
        check_replay(one, server)
    check(database_url)
    tally["F15", "disks that were full" if what == "tables" else "disks without room for the log"] += 1


def fill_the_log(database_url: str) -> None:
    """Until it needs a new piece, which Postgres does not survive; no table grows."""
    with contextlib.suppress(psycopg.Error), psycopg.connect(database_url, autocommit=True) as connection:
        for _ in range(200):
            connection.execute("select pg_logical_emit_message(true, 'filler', repeat('x', 1000000))")


def said_by_postgres(data_dir: Path) -> str:
    return (data_dir / "postgres.log").read_text()


@pytest.mark.faults
def test_new_work_is_refused_before_the_disk_is_full(
    small_disk: SmallDisk, data_dir: Path, tally: Tally
) -> None:
    reserve = 40 << 20
    server = ServerProcess(settings={**SCRIPTED, **PACE, "data_dir": data_dir, "disk_reserve": reserve})
    server.start()
    try:
        with Traffic(server, tokens=200) as traffic:
            small_disk.fill(reserve // 2)
            refused = httpx.post(f"{server.api}/responses", json=HELLO, timeout=PATIENCE_S)
            check_error(refused, 503, "server_error")
            known = traffic.followed[0].response_id
            assert httpx.get(f"{server.api}/responses/{known}").status_code == 200
        assert all(one.is_whole for one in traffic.followed), "what runs goes on"
        assert small_disk.free > 0
        assert "PANIC" not in said_by_postgres(data_dir)
        small_disk.empty()
        eventually(lambda: is_creating(server), within=RESUMED_S)
        check_answers(traffic)
        check_store(traffic, server, database_of(data_dir))
        tally["F15", "disks that were nearly full"] += 1
    finally:
        server.stop()
