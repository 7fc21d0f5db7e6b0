"""F16: a purge every 100 ms under readers of what is purged: each replay is whole, or 404 from its start."""

import random
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from time import monotonic

import httpx
import psycopg
import pytest

from tests.fix_server import StartServer
from tests.fix_tally import Tally
from tests.support.eventually import eventually
from tests.support.rounds import ROUNDS
from tests.support.server_process import MODEL, ServerProcess

READERS = 20
PURGING_S = 30.0 * ROUNDS
RESPONSES_A_ROUND = 12
GONE = (0, 0, 0)
STEP = {"model": MODEL, "input": "Go on."}


class Library:
    """Responses by id with their streams, for readers to choose from."""

    def __init__(self) -> None:
        self._streams: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def add(self, response_id: str, stream: bytes) -> None:
        with self._lock:
            self._streams[response_id] = stream

    def choose(self, randomness: random.Random) -> tuple[str, bytes]:
        with self._lock:
            return randomness.choice(list(self._streams.items()))


def fill(server: ServerProcess, library: Library) -> None:
    """Makes responses, every third the last of a conversation, and reads each stream once."""
    with httpx.Client(base_url=server.api, timeout=60) as client:
        previous: str | None = None
        for number in range(RESPONSES_A_ROUND):
            body = {**STEP, "previous_response_id": previous}
            made = client.post("/responses", json=body)
            if made.status_code == 404:  # what it would have gone on from was purged
                made = client.post("/responses", json=STEP)
            assert made.status_code == 200, made.text
            response_id = made.json()["id"]
            stream = client.get(f"/responses/{response_id}?stream=true")
            if stream.status_code == 200:
                library.add(response_id, stream.content)
            previous = None if number % 3 == 2 else response_id


def read(server: ServerProcess, library: Library, seed: int, stop: threading.Event) -> Counter[int]:
    """Replays without a pause until the end; how often which status came. Fails at a replay that is cut."""
    randomness = random.Random(seed)
    statuses: Counter[int] = Counter()
    with httpx.Client(base_url=server.api, timeout=60) as client:
        while not stop.is_set():
            response_id, whole = library.choose(randomness)
            frames = whole.split(b"\n\n")
            last = len(frames) - 3  # [DONE] follows, and what is after the last blank line
            after = randomness.choice([None, 0, 5, last])
            rest = whole if after is None else b"\n\n".join(frames[after + 1 :])
            suffix = "" if after is None else f"&starting_after={after}"
            answer = client.get(f"/responses/{response_id}?stream=true{suffix}")
            statuses[answer.status_code] += 1
            assert answer.status_code in (200, 404), answer.text
            if answer.status_code == 200:
                assert answer.content == rest, f"{response_id} was cut"
            final = client.get(f"/responses/{response_id}")
            assert final.status_code in (200, 404), final.text
            if final.status_code == 200:
                assert final.json()["output"], f"{response_id} lost its output"
    return statuses


@contextmanager
def readers(server: ServerProcess, library: Library) -> Iterator[Counter[int]]:
    """Twenty of them, until the block ends; then how often which status came."""
    stop = threading.Event()
    statuses: Counter[int] = Counter()
    with ThreadPoolExecutor(READERS) as pool:
        running = [pool.submit(read, server, library, seed, stop) for seed in range(READERS)]
        try:
            yield statuses
        finally:
            stop.set()
        for reader in running:
            statuses += reader.result()


@pytest.mark.faults
def test_replays_are_whole_or_absent_under_purges(
    start_server: StartServer, database_url: str, tally: Tally
) -> None:
    purging: dict[str, object] = {"purge_seconds": 0.1, "send_seconds": 0.1, "scripted_tokens": 60}
    server, other = start_server(**purging), start_server(**purging)
    library = Library()
    fill(server, library)
    with (
        readers(server, library) as statuses,
        readers(other, library) as others,
        psycopg.connect(database_url, autocommit=True) as connection,
    ):
        until = monotonic() + PURGING_S
        while monotonic() < until:
            fill(server, library)
            connection.execute(
                "update responses set expires_at = clock_timestamp() + random() * interval '2 s'"
            )
            eventually(lambda: rows(connection) == GONE, within=60)
            tally["F16", "responses purged"] += RESPONSES_A_ROUND
    for seen in (statuses, others):
        assert seen[200] > 0
        assert seen[404] > 0
        tally["F16", "replays read whole"] += seen[200]
        tally["F16", "replays of what was purged"] += seen[404]


def rows(connection: psycopg.Connection) -> tuple[int, ...]:
    """How many responses, items and streams there are."""
    found = connection.execute(
        "select (select count(*) from responses), (select count(*) from items),"
        " (select count(*) from response_streams)"
    ).fetchone()
    assert found is not None
    return found
