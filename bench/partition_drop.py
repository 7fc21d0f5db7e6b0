"""Retention of one full partition: dropping it against deleting its responses one by one.

BENCH_RESPONSES is how many there are in place of the million.
"""

import os
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path

import psycopg

from server.embedded_postgres.embedded_server import EmbeddedPostgres
from server.limits.disk_space import Disk
from server.maintenance.partition_drop import PartitionDrop
from server.maintenance.retention import purge
from server.store.content import storage_usage
from server.store.database import Database
from server.store.schema.upgrade import upgrade
from tests.support.old_partitions import days_ago, fill, make_partitions

RESPONSES = int(os.environ.get("BENCH_RESPONSES", "1000000"))
RETENTION_DAYS = 30


def run() -> None:
    """Seconds to drop a partition ÷ to delete its rows; minutes, most of them of deletion."""
    seconds = dict[str, float]()
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder, ExitStack() as stack:
        Path(folder).chmod(0o711)
        postgres = stack.enter_context(EmbeddedPostgres(Path(folder) / "data"))
        for way in ("drop", "rows"):
            with psycopg.connect(postgres.url, autocommit=True) as connection:
                connection.execute(f"create database {way}".encode())
            seconds[way] = _purge(postgres.url_of(way), way)
    print(
        f"  drop ÷ row by row, of {RESPONSES} responses: {seconds['drop'] / seconds['rows']:.4f}", flush=True
    )


def _purge(url: str, way: str) -> float:
    upgrade(url)
    make_partitions(url, [days_ago(34, 31), days_ago(31, 28), days_ago(28, -3)])
    began = time.monotonic()
    fill(url, days_ago(34, 31), RESPONSES, days=RETENTION_DAYS)
    fill(url, days_ago(27, 0), RESPONSES // 100, days=RETENTION_DAYS)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("vacuum analyze")
    print(f"  {RESPONSES} responses written in {time.monotonic() - began:.0f} s", flush=True)
    with closing(Database(url, pool_size=2)) as database:
        began = time.monotonic()
        if way == "drop":
            lost = PartitionDrop(database, RETENTION_DAYS, 0, 0).run().total()
        else:
            lost = purge(database, Disk(None, None), 0).responses
        seconds = time.monotonic() - began
        stored = sum(bytes_ for _, bytes_ in database.read(storage_usage.totals))
    print(f"  {way}: {seconds:.1f} s for {lost} responses; {stored} bytes are left", flush=True)
    assert lost == RESPONSES
    return seconds
