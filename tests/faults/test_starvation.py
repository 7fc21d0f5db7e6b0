"""F24: more requests than connections, while somebody holds the row that many of them want."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from time import monotonic

import httpx
import psycopg
import pytest

from tests.fix_server import StartServer
from tests.fix_tally import Tally
from tests.support.server_process import MODEL, ServerProcess, run_command

WRITERS, READERS = 192, 8
CONNECTIONS = 10
READ_S = 1.0
"""What 99 of 100 reads must keep to while others wait for the row."""
ANSWER_S = 25.0
"""A wait for a thread, then one for the lock, and what comes before it."""
PATIENCE_S = 60.0


class Crowd:
    """Clients that ask at the same time, and how long each was left waiting."""

    def __init__(self, server: ServerProcess, key: str) -> None:
        self._client = httpx.Client(
            base_url=server.api,
            timeout=PATIENCE_S,
            headers={"authorization": f"Bearer {key}"},
            limits=httpx.Limits(max_connections=WRITERS + READERS),
        )

    def close(self) -> None:
        self._client.close()

    def send(self, method: str, path: str, body: object = None) -> tuple[int, float]:
        began = monotonic()
        answer = self._client.request(method, path, json=body)
        return answer.status_code, monotonic() - began

    def keep_sending(self, method: str, path: str, until: float) -> list[tuple[int, float]]:
        answers: list[tuple[int, float]] = []
        while not answers or monotonic() < until:
            answers.append(self.send(method, path))
        return answers

    def create(self, **wanted: object) -> str:
        body = {"model": MODEL, "input": "Hello", "max_output_tokens": 3, **wanted}
        found: str = self._client.post("/responses", json=body).raise_for_status().json()["id"]
        return found


@pytest.mark.parametrize("held", [1.5, pytest.param(5.0, marks=pytest.mark.faults)])
def test_reads_are_quick_and_everything_is_answered_while_a_hot_row_is_locked(
    start_server: StartServer, database_url: str, held: float, tally: Tally
) -> None:
    key = run_command("keys", "create", database_url=database_url).stdout.split()[-1]
    server = start_server(database_connections=CONNECTIONS, lease_seconds=10)
    with closing(Crowd(server, key)) as crowd:
        meet_a_locked_row(crowd, database_url, held, tally)


def meet_a_locked_row(crowd: Crowd, database_url: str, held: float, tally: Tally) -> None:
    hot, other = crowd.create(), crowd.create()
    following = {"model": MODEL, "input": "Go on", "previous_response_id": hot, "max_output_tokens": 3}
    reading = f"/responses/{other}"
    with psycopg.connect(database_url) as blocker, ThreadPoolExecutor(WRITERS + READERS) as pool:
        blocker.execute("select * from responses, api_keys for update")
        until = monotonic() + held
        writes = [pool.submit(crowd.send, "POST", "/responses", following) for _ in range(WRITERS // 2)]
        writes += [pool.submit(crowd.send, "DELETE", f"/responses/{hot}") for _ in range(WRITERS // 2)]
        reads = [pool.submit(crowd.keep_sending, "GET", reading, until) for _ in range(READERS)]
        found = [answer for read in reads for answer in read.result()]
        blocker.rollback()
        written = [write.result() for write in writes]
    assert {status for status, _ in found} == {200}
    assert sorted(seconds for _, seconds in found)[len(found) * 99 // 100] <= READ_S
    assert {status for status, _ in written} <= {200, 400, 404, 429, 503}
    assert max(seconds for _, seconds in written) <= ANSWER_S
    assert crowd.create()
    tally["F24", "requests that waited for a locked row"] += len(written)
    tally["F24", "reads beside them"] += len(found)
