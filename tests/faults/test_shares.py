"""F40, F41: one tenant takes everything it may and tries for more; another one hardly notices."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from time import monotonic, sleep
from typing import Any, Protocol

import httpx
import psycopg
import pytest

from tests.fix_server import StartServer, StartServerOn
from tests.fix_tally import Tally
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess
from tests.support.sse import create
from tests.support.tenants import make_tenant_key, sent

PACE: dict[str, object] = {
    "scripted_tokens": 600,
    "scripted_step_seconds": 0.02,
    "max_running": 8,
    "max_waiting": 24,
    "max_queued": 40,
}
CHAT = "chat/completions"
ASK = {"model": MODEL, "input": "Go on."}
SHORT = {**ASK, "max_output_tokens": 10}
LIKELY = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Go on."}],
    "logprobs": True,
    "top_logprobs": 20,
}
SAMPLES = 100
NOISE_S = 1.0
"""What a busy machine may add to the p99; a small part of a long answer's time."""
REPLICAS, PLACES = 2, 2
"""So many replicas, each of which runs so many responses at a time."""
CONNECTIONS = 32

Attack = Callable[["Client"], httpx.Response]


class Client:
    """One tenant's connections to one server.

    They are kept and used again: to set up a client for each request costs more than the request, in the
    very process that measures.
    """

    def __init__(self, server: ServerProcess, key: str) -> None:
        self._client = httpx.Client(
            base_url=server.api,
            headers=sent(key),
            timeout=60,
            limits=httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS),
        )

    def close(self) -> None:
        self._client.close()

    def post(self, body: dict[str, Any], to: str = "responses") -> httpx.Response:
        return self._client.post(f"/{to}", json=body)

    def seconds_of_one(self) -> float:
        """How long one short request takes, which must not be refused."""
        began = monotonic()
        answer = self.post(SHORT)
        taken = monotonic() - began
        assert answer.status_code == 200, answer.text
        assert answer.json()["status"] == "incomplete"
        return taken


class Connect(Protocol):
    """Makes clients that are closed after the test."""

    def __call__(self, server: ServerProcess, key: str) -> Client: ...


@pytest.fixture
def connect() -> Iterator[Connect]:
    with ExitStack() as stack:
        yield lambda server, key: stack.enter_context(closing(Client(server, key)))


ATTACKS: dict[str, Attack] = {
    "running and waiting": lambda greedy: greedy.post(ASK),
    "background": lambda greedy: greedy.post({**ASK, "background": True}),
    "priority": lambda greedy: greedy.post({**ASK, "priority": -(10**9)}),
    "choices": lambda greedy: greedy.post({**LIKELY, "n": 16, "max_completion_tokens": 30}, CHAT),
    "log probabilities": lambda greedy: greedy.post({**LIKELY, "n": 16, "max_completion_tokens": 1500}, CHAT),
}


@contextmanager
def attacking(greedy: Client, attack: Attack, threads: int = 24) -> Iterator[list[int]]:
    """One tenant tries all the time, from many connections; the statuses of its answers."""
    statuses: list[int] = []
    stopping = threading.Event()

    def go_on() -> None:
        while not stopping.is_set():
            answer = attack(greedy)
            statuses.append(answer.status_code)
            if answer.status_code != 200:
                sleep(0.2)  # an attacker that heeds nothing would measure the client's own load

    running = [threading.Thread(target=go_on) for _ in range(threads)]
    for thread in running:
        thread.start()
    try:
        yield statuses
    finally:
        stopping.set()
        for thread in running:
            thread.join()


def p99(seconds: list[float]) -> float:
    """What 99 of 100 keep to."""
    return sorted(seconds)[-(-len(seconds) * 99 // 100) - 1]


@pytest.mark.faults
@pytest.mark.parametrize("dimension", ATTACKS)
def test_a_tenant_that_tries_for_more_than_its_share_slows_no_other_down(
    database_url: str,
    other_database_url: str,
    start_server_on: StartServerOn,
    connect: Connect,
    dimension: str,
    tally: Tally,
) -> None:
    """Quiet is a second server, by turns with the first: of the same settings, at the same time and on the
    same machine, with a database of its own and nobody else's requests.
    """
    keys = [make_tenant_key(database_url, tenant) for tenant in ("greedy", "modest")]
    alone_key = make_tenant_key(other_database_url, "modest")
    server = start_server_on(database_url, **PACE)
    greedy, modest = (connect(server, key) for key in keys)
    alone = connect(start_server_on(other_database_url, **PACE), alone_key)
    busy, quiet = [], []
    with attacking(greedy, ATTACKS[dimension]) as statuses:
        eventually(lambda: len(statuses) >= 5, within=60)
        for _ in range(SAMPLES):
            quiet.append(alone.seconds_of_one())
            busy.append(modest.seconds_of_one())
    assert set(statuses) <= {200, 400, 429}
    tally["F40", f"% of the quiet p99 that requests took at p99 beside: {dimension}"] = round(
        100 * p99(busy) / p99(quiet)
    )
    assert p99(busy) <= 2 * p99(quiet) + NOISE_S


@pytest.mark.faults
def test_two_replicas_claim_a_full_queue_in_turns_of_the_tenants(
    start_server: StartServer, database_url: str, connect: Connect, tally: Tally
) -> None:
    greedy, modest = (make_tenant_key(database_url, tenant) for tenant in ("greedy", "modest"))
    pace = {**PACE, "max_running": PLACES, "max_queued": 1000, "scripted_tokens": 5000, "grace_seconds": 0}
    servers = [start_server(**pace) for _ in range(REPLICAS)]
    queued = {**SHORT, "background": True}
    with ExitStack() as stack:
        # Nothing is claimed before all are queued, however long that takes.
        for server in servers * PLACES:
            stack.enter_context(create(server.url, ASK, key=greedy)).take(1)
        for key, count in ((greedy, 60), (modest, 3)):
            client = connect(servers[0], key)
            assert [client.post(queued).status_code for _ in range(count)] == [200] * count
        assert started_before_the_last_of(database_url, "modest") == []

    eventually(lambda: count_ended(database_url) == 63, within=120)
    started = started_before_the_last_of(database_url, "modest")
    before = started.count("greedy")
    assert started.count("modest") == 3
    assert before <= 3 + REPLICAS * PLACES, "the queue was served in the order of arrival"
    tally["F41", "of 60 queued before, begun before the last of three of another tenant"] += before


def started_before_the_last_of(database_url: str, tenant: str) -> list[str]:
    """Whose background responses were begun, up to the last one of a tenant."""
    query = """
        select tenant from responses where background
        and started_at <= (select max(started_at) from responses where background and tenant = %s)
    """
    with psycopg.connect(database_url) as connection:
        return [name for (name,) in connection.execute(query, [tenant])]


def count_ended(database_url: str) -> int:
    query = "select count(*) from responses where background and status = 'incomplete'"
    with psycopg.connect(database_url) as connection:
        (count,) = connection.execute(query).fetchone() or (0,)
        return int(count)
