"""Every line of docs/sql.md at 1,000,000 responses, on each Postgres there is: its plan and its time.

BENCH_RESPONSES is how many there are in place of the million; BENCH_WRITE=1 puts the table into the page.
"""

import os
import re
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from bench.generated_rows import fill
from server.embedded_postgres.binaries import bin_directory_of_major
from server.embedded_postgres.embedded_server import EmbeddedPostgres
from server.store import database_roles
from server.store.schema.upgrade import upgrade
from tests.support.documents import SQL_PAGE, between, sql_lines

RESPONSES = int(os.environ.get("BENCH_RESPONSES", "1000000"))
MAJORS = (15, 18)
ROUNDS = 7
GOAL_MS = 500.0
_PARTITION = re.compile(r"_before_[0-9]{8}|_default$")
"""What names of partitions, and of their indexes, have behind those of the whole."""
QUICK = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_wal_size": "4GB"}


@dataclass(frozen=True, slots=True)
class Asked:
    """A line of the page on one Postgres."""

    milliseconds: float
    """Until all rows were there, at the median."""
    cpu_milliseconds: float
    """Of the session's process, likewise; nothing ran in parallel to it."""
    plan: str


def run() -> None:
    """Times of the questions of docs/sql.md; goal: each within 500 ms on Postgres 15 and 18."""
    lines = [(title, line) for title, line in sql_lines() if "admin.search" not in line]  # off by default
    found: dict[int, list[Asked]] = {}
    for major in MAJORS:
        if (directory := bin_directory_of_major(major)) is None:
            print(f"  Postgres {major} is not installed here")
            continue
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
            Path(folder).chmod(0o711)
            with EmbeddedPostgres(Path(folder) / "data", pgbin=directory, options=QUICK) as postgres:
                found[major] = _ask_all(postgres.url, [line for _, line in lines])
    table = _table([title for title, _ in lines], found)
    print(table)
    if os.environ.get("BENCH_WRITE"):
        page = between(SQL_PAGE.read_text(encoding="utf-8"), "times", table)
        SQL_PAGE.write_text(page, encoding="utf-8")


def _ask_all(url: str, lines: Sequence[str]) -> list[Asked]:
    upgrade(url)
    database_roles.create_roles(url)
    began = time.monotonic()
    longest = fill(url, RESPONSES)
    with psycopg.connect(url, autocommit=True) as connection:
        version = connection.info.server_version // 10000
        print(f"  Postgres {version}: {RESPONSES} responses in {time.monotonic() - began:.0f} s", flush=True)
        connection.execute("set max_parallel_workers_per_gather = 0")
        connection.execute(sql.SQL("set role {}").format(sql.Identifier(database_roles.READER)))
        asked = []
        for line in lines:
            asked.append(_ask(connection, line.replace("resp_…", longest)))
            print(f"  {_times(asked[-1])}  {line[:90]}\n    {asked[-1].plan}", flush=True)
        return asked


def _ask(connection: psycopg.Connection, line: str) -> Asked:
    times, cpu_times = [], []
    for _ in range(ROUNDS):
        began, cpu_began = time.perf_counter(), _cpu_seconds(connection)
        connection.execute(line.encode()).fetchall()
        times.append((time.perf_counter() - began) * 1000)
        cpu_times.append((_cpu_seconds(connection) - cpu_began) * 1000)
    explained = connection.execute(b"explain (format json) " + line.encode()).fetchone()
    assert explained is not None
    medians = statistics.median(times), statistics.median(cpu_times)
    return Asked(*medians, ", ".join(dict.fromkeys(_scans(explained[0][0]["Plan"]))))


def _cpu_seconds(connection: psycopg.Connection) -> float:
    """What the session's process has computed until now; Linux counts nanoseconds."""
    schedule = Path(f"/proc/{connection.info.backend_pid}/schedstat").read_text(encoding="ascii")
    return int(schedule.split()[0]) / 1e9


def _times(asked: Asked) -> str:
    return f"{asked.milliseconds:.1f} ms ({asked.cpu_milliseconds:.1f})"


def _scans(node: dict[str, Any]) -> Iterator[str]:
    """The indexes that a plan reads, and the tables read without one; default partitions are empty."""
    if node.get("Relation Name", "").endswith("_default"):
        return
    if "Index Name" in node:
        yield f"`{_PARTITION.sub('', node['Index Name'])}`"
    elif node["Node Type"] == "Seq Scan":
        yield f"all of `{_PARTITION.sub('', node['Relation Name'])}`"
    for inner in node.get("Plans", ()):
        yield from _scans(inner)


def _table(titles: Sequence[str], found: dict[int, list[Asked]]) -> str:
    """Markdown: a row for each line of the page, in its order."""
    majors = sorted(found)
    head = ["line", *(f"Postgres {major}" for major in majors), "reads"]
    says = (
        f"Until all rows were there, in brackets the processor time of the session: medians of {ROUNDS}, at\n"
        f"{RESPONSES:,} responses of 90 days, 20 tenants and 6,000 users, without parallel workers.\n"
        "`BENCH_WRITE=1 python -m bench admin_sql` measures again and writes this table.\n"
    )
    rows = ["", says, "| " + " | ".join(head) + " |", "| --- |" + " ---: |" * len(majors) + " --- |"]
    for place, title in enumerate(titles):
        asked = [found[major][place] for major in majors]
        times = [_times(one) for one in asked]
        rows.append("| " + " | ".join([title, *times, asked[-1].plan]) + " |")
    late = sum(
        any(one[place].milliseconds > GOAL_MS for one in found.values()) for place in range(len(titles))
    )
    busy = sum(
        any(one[place].cpu_milliseconds > GOAL_MS for one in found.values()) for place in range(len(titles))
    )
    goal = f"Goal: {GOAL_MS:.0f} ms. Of {len(titles)} lines {late} miss it, {busy} by their processor time."
    return "\n".join([*rows, "", goal, "", ""])
