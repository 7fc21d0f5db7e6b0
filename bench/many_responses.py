"""Reading and going on from stored responses, with a million of them against ten thousand.

Both are spread over 90 days, in partitions of three. BENCH_RESPONSES is how many there are in place of the
million.
"""

import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from uuid import UUID

import httpx
import psycopg

from bench.rounds import divide, tell
from bench.rows import fill, read_model
from server.embedded_postgres.embedded_server import EmbeddedPostgres
from server.protocol.ids import parse_response_id, response_id
from server.store.schema.upgrade import upgrade
from tests.support.old_partitions import days_ago, make_partitions
from tests.support.server_process import MODEL, ServerProcess

FEW = 10_000
MANY = int(os.environ.get("BENCH_RESPONSES", "1000000"))
CHAINS = 10
TURNS = 50
ROUNDS = 6
GETS = 60
"""In a round, each of another response."""
DAYS = 90
PARTITION_DAYS = 3
LOOKUPS = 20
"""Of each line of SQL in a round."""
GOAL = "<=1.5"
QUICK = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_wal_size": "4GB"}
"""The rows are written once and lost with the measurement."""

SETTINGS = {"engine": "scripted", "scripted_tokens": 24, "retention_days": 0}
LINES = (
    "select response, tenant, status, total_seconds from admin.responses where id = admin.uuid_of('resp_…')",
    "select sequence_number, type, delta from admin.events where id = admin.uuid_of('resp_…') order by 1",
    "select side, place, type, payload from admin.items where response_id = admin.uuid_of('resp_…')",
    "select response, status from admin.responses where tenant = 'default' order by created_at desc limit 50",
    "select response, tenant, status, age from admin.unfinished order by age desc",
)

Ask = Callable[["_Filled"], None]


class _Filled:
    """A server whose database has so many responses."""

    def __init__(self, url: str, count: int, stack: ExitStack) -> None:
        upgrade(url)
        starts = range(DAYS, -PARTITION_DAYS, -PARTITION_DAYS)
        make_partitions(url, [days_ago(start, start - PARTITION_DAYS) for start in starts])
        self.server = ServerProcess(url, settings=SETTINGS)
        stack.callback(self.server.stop)
        self.server.start()
        self._client = stack.enter_context(httpx.Client(base_url=self.server.api, timeout=60))
        first = self._create()
        later = self._create(previous_response_id=response_id(first))
        began = time.monotonic()
        lengths = [TURNS] * CHAINS + [1] * (count - TURNS * CHAINS - 2)
        with psycopg.connect(url, autocommit=True) as connection:
            models = read_model(connection, first), read_model(connection, later, first)
            ids = fill(connection, *models, lengths, spread=days_ago(DAYS, 0))
            connection.execute("vacuum analyze")
        self._sql = stack.enter_context(psycopg.connect(url, autocommit=True))
        print(f"  {count} responses written in {time.monotonic() - began:.0f} s")
        self._chains, self._single = ids[:CHAINS], [chain[0] for chain in ids[CHAINS:]]

    def _create(self, **more: object) -> UUID:
        body = {"model": MODEL, "input": "What is there to say?", **more}
        answer = self._client.post("/responses", json=body).raise_for_status().json()
        found = parse_response_id(answer["id"])
        assert found is not None
        return found

    def get(self) -> None:
        for response in random.sample(self._single, GETS):
            self._client.get(f"/responses/{response_id(response)}").raise_for_status()

    def replay(self) -> None:
        for response in random.sample(self._single, GETS // 4):
            path = f"/responses/{response_id(response)}?stream=true"
            assert self._client.get(path).raise_for_status().content.endswith(b"[DONE]\n\n")

    def list(self) -> None:
        """The newest page, and pages from anywhere."""
        for after in ["", *(f"&after={response_id(one)}" for one in random.sample(self._single, 9))]:
            listed = self._client.get(f"/responses?limit=20{after}").raise_for_status().json()["data"]
            assert len(listed) == 20 or after, len(listed)

    def go_on(self) -> None:
        for chain in self._chains:
            self._create(previous_response_id=response_id(chain[-1]), max_output_tokens=1, store=False)

    def admin_views(self) -> None:
        """Questions of docs/sql.md about single responses, chains and what is not finished."""
        for response in random.sample(self._single, LOOKUPS):
            for line in LINES:
                self._sql.execute(line.replace("resp_…", response_id(response)).encode()).fetchall()
        for chain in self._chains:
            turns = self._sql.execute("select * from admin.chain(%s)", [response_id(chain[-1])]).fetchall()
            assert len(turns) == TURNS


ASKED: dict[str, Ask] = {
    "GET": _Filled.get,
    "GET as a stream": _Filled.replay,
    "GET of a list": _Filled.list,
    f"POST after {TURNS} turns": _Filled.go_on,
    "views of admin": _Filled.admin_views,
}


def run() -> None:
    """Many stored responses ÷ few: GET, replay, going on from chains of 50 turns; minutes of writing."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder, ExitStack() as stack:
        Path(folder).chmod(0o711)
        postgres = stack.enter_context(EmbeddedPostgres(Path(folder) / "data", options=QUICK))
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            connection.execute("create database few")
        few = _Filled(postgres.url_of("few"), FEW, stack)
        many = _Filled(postgres.url, MANY, stack)
        for name, ask in ASKED.items():
            _compare(name, ask, few, many)


def _compare(name: str, ask: Ask, few: _Filled, many: _Filled) -> None:
    times: dict[_Filled, list[float]] = {few: [], many: []}
    for turn in range(-2, ROUNDS):
        for filled in (few, many) if turn % 2 else (many, few):
            start = time.monotonic()
            ask(filled)
            if turn >= 0:
                times[filled].append(time.monotonic() - start)
    middle = {filled: statistics.median(found) for filled, found in times.items()}
    print(f"  {name}, a round of {FEW}: {middle[few] * 1000:.0f} ms; of {MANY}: {middle[many] * 1000:.0f} ms")
    tell(f"{name}: {MANY} ÷ {FEW} responses", divide(times[many], times[few]), GOAL)
