"""F2: a server that dies at a named place, and the next one, which dies at the next, while clients go on."""

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress

import httpx
import psycopg
import pytest

from server.crashpoints import CRASHPOINTS, KILLED_EXIT
from tests.fix_server import SCRIPTED, StartServer
from tests.fix_tally import Tally
from tests.support.attached import HTTP, PATIENCE_S, Attached, Crowd, ask, check
from tests.support.eventually import eventually
from tests.support.rounds import rounds
from tests.support.server_process import ServerProcess

SETTINGS: dict[str, object] = {
    **SCRIPTED,
    "scripted_tokens": 200,
    "scripted_step_seconds": 0.005,
    "lease_seconds": 2,
    "max_deaths": 1000,
    "purge_seconds": 0.1,
    "send_seconds": 0.1,
}
AT_A_TIME = 6
"""Streams that clients keep open."""
PASSES = {"accept": 4, "claim": 2, "recorder": 20, "end": 3, "stream": 30}
"""At which pass of a place to die at the latest; at the first where nothing is said."""
ELSEWHERE = ("detach.", "drop.", "webhook.")
"""Places that only dropped partitions and webhooks pass: see test_partition_drops and test_webhooks."""
SAMPLE = ("accept.committed", "recorder.committed", "orphans.committed", "end.written", "stream.frame")


class Customers:
    """They stream, cancel, delete and let responses expire, on whichever server there is."""

    def __init__(self, server: ServerProcess, choose: random.Random, connection: psycopg.Connection) -> None:
        self.server = server
        self.connection = connection
        self.cancelled: list[str] = []
        self.deleted: list[str] = []
        self.crowd = Crowd(lambda: self.server)
        self._choose = choose
        self._stopping = threading.Event()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Until the block ends and then until every stream has."""
        with self.crowd, ThreadPoolExecutor(3) as pool:
            work = [pool.submit(self._repeat, act) for act in (self._stream, self._cancel, self._delete)]
            try:
                yield
            finally:
                self._stopping.set()
            for future in work:
                future.result(PATIENCE_S)
            self.crowd.finish()

    def _repeat(self, act: Callable[[], None]) -> None:
        while not self._stopping.wait(0.05):
            with suppress(httpx.HTTPError):
                act()

    def _stream(self) -> None:
        while self.crowd.unfinished < AT_A_TIME:
            number = len(self.crowd.clients)
            self.crowd.start(Attached(ask(number // 2, self._choose, background=number % 2 == 0)))

    def _begin(self) -> str:
        body = ask(0, self._choose, background=True)
        answer = HTTP.post(f"{self.server.api}/responses", json=body)
        answer.raise_for_status()
        identifier: str = answer.json()["id"]
        return identifier

    def _cancel(self) -> None:
        """Cancels a response, and has it expire once it has its end."""
        response_id = self._begin()
        answer = HTTP.post(f"{self.server.api}/responses/{response_id}/cancel")
        if answer.is_success and answer.json()["status"] == "cancelled":
            self.cancelled.append(response_id)
            self.connection.execute(
                "update responses set expires_at = clock_timestamp() where id = %s", [response_id[5:]]
            )

    def _delete(self) -> None:
        response_id = self._begin()
        if HTTP.delete(f"{self.server.api}/responses/{response_id}").is_success:
            self.deleted.append(response_id)


def in_order(points: Sequence[str], choose: random.Random) -> list[str]:
    """In any order, but a burial comes after a death that left something to bury."""
    deaths = [point for point in points if point.startswith("recorder.")]
    burials = [point for point in points if point.startswith("orphans.")]
    others = [point for point in points if point not in deaths and point not in burials]
    choose.shuffle(others)
    choose.shuffle(deaths)
    return others + [point for pair in zip(deaths, burials, strict=False) for point in pair] + deaths[2:]


def die_at(customers: Customers, server: ServerProcess, point: str) -> None:
    """Has the customers use the server, which is to die there, until it does."""
    customers.server = server
    server.launch()
    if point.startswith("release."):
        # What it has when it is asked may have ended by itself before it can be handed back.
        while hand_back(customers.connection, server) == 0:
            server.launch()
        return
    eventually(lambda: server.has_ended, within=PATIENCE_S)
    assert server.wait() == KILLED_EXIT, point


def hand_back(connection: psycopg.Connection, server: ServerProcess) -> int:
    """Asks the server to end while it has work; its exit code."""
    eventually(lambda: server.has_ended or has_work(connection, server), within=PATIENCE_S)
    server.ask_to_end()
    code = server.wait()
    assert code in (0, KILLED_EXIT)
    return code


_HAS_WORK = """
    select 1 from responses r join replicas p on p.id = r.replica_id
    where p.pid = %s and p.state = 'alive' and r.background and r.status = 'in_progress' limit 1
"""


def has_work(connection: psycopg.Connection, server: ServerProcess) -> bool:
    """Whether the server generates a response in the background."""
    return connection.execute(_HAS_WORK, [server.pid]).fetchone() is not None


def die_everywhere(
    start_server: StartServer, database_url: str, seed: int, points: Sequence[str], tally: Tally
) -> None:
    choose = random.Random(seed)
    first = start_server(**SETTINGS)
    with ExitStack() as stack:
        connection = stack.enter_context(psycopg.connect(database_url, autocommit=True))
        customers = Customers(first, choose, connection)
        with customers.at_work():
            eventually(lambda: has_work(connection, first), within=PATIENCE_S)
            first.kill()
            for point in in_order(points, choose):
                passes = choose.randint(1, PASSES.get(point.partition(".")[0], 1))
                settings = {**SETTINGS, "crash_at": f"{point}:{passes}"}
                server = ServerProcess(database_url, settings=settings)
                stack.callback(server.stop)
                die_at(customers, server, point)
                tally["F2", "crash points hit"] += 1
            customers.server = last = start_server(**SETTINGS)
        tally["F2", "tokens compared"] += check(customers.crowd.clients, last)
        tally["F2", "streams followed"] += len(customers.crowd.clients)
        assert customers.cancelled
        assert customers.deleted
        for response_id in customers.deleted:
            answer = HTTP.get(f"{last.api}/responses/{response_id}")
            assert answer.status_code == 404


@pytest.mark.faults
def test_deaths_at_named_places_cost_clients_nothing(
    start_server: StartServer, database_url: str, tally: Tally
) -> None:
    die_everywhere(start_server, database_url, 0, SAMPLE, tally)


@pytest.mark.parametrize("seed", rounds(few=0, many=3))
def test_a_death_at_any_named_place_costs_clients_nothing(
    start_server: StartServer, database_url: str, seed: int, tally: Tally
) -> None:
    points = [point for point in CRASHPOINTS if not point.startswith(ELSEWHERE)]
    die_everywhere(start_server, database_url, seed, sorted(points), tally)
