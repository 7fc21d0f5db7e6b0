"""F40, F41: one tenant takes everything it may and tries for more; another one hardly notices."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any

import httpx
import psycopg
import pytest

from tests.fix_server import StartServer
from tests.fix_tally import Tally
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess
from tests.support.tenants import make_tenant_key, sent

PACE: dict[str, object] = {
    "scripted_tokens": 600,
    "scripted_step_seconds": 0.02,
    "max_running": 8,
    "max_waiting": 24,
    "max_queued": 40,
}
ASK = {"model": MODEL, "input": "Go on."}
SHORT = {**ASK, "max_output_tokens": 10}
LIKELY = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Go on."}],
    "logprobs": True,
    "top_logprobs": 20,
}
NOISE_S = 5.0
"""What a busy machine may add to the slowest request; less than half of a long answer's time."""

Attack = Callable[[ServerProcess, str], httpx.Response]


def post(server: ServerProcess, key: str, body: dict[str, Any], to: str = "responses") -> httpx.Response:
    return httpx.post(f"{server.api}/{to}", json=body, headers=sent(key), timeout=60)


ATTACKS: dict[str, Attack] = {
    "running and waiting": lambda server, key: post(server, key, ASK),
    "background": lambda server, key: post(server, key, {**ASK, "background": True}),
    "priority": lambda server, key: post(server, key, {**ASK, "priority": -(10**9)}),
    "choices": lambda server, key: post(
        server, key, {**LIKELY, "n": 16, "max_completion_tokens": 30}, "chat/completions"
    ),
    "log probabilities": lambda server, key: post(
        server, key, {**LIKELY, "n": 16, "max_completion_tokens": 1500}, "chat/completions"
    ),
}


@contextmanager
def attacking(server: ServerProcess, key: str, attack: Attack, threads: int = 24) -> Iterator[list[int]]:
    """One tenant tries all the time, from many connections; the statuses of its answers."""
    statuses: list[int] = []
    stopping = threading.Event()

    def go_on() -> None:
        while not stopping.is_set():
            answer = attack(server, key)
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


def slowest(server: ServerProcess, key: str, count: int) -> float:
    """Seconds of the slowest of so many requests, none of which is refused."""
    times = []
    for _ in range(count):
        began = monotonic()
        answer = post(server, key, SHORT)
        assert answer.status_code == 200, answer.text
        assert answer.json()["status"] == "incomplete"
        times.append(monotonic() - began)
    return max(times)


@pytest.mark.faults
@pytest.mark.parametrize("dimension", ATTACKS)
def test_a_tenant_that_tries_for_more_than_its_share_slows_no_other_down(
    start_server: StartServer, database_url: str, dimension: str, tally: Tally
) -> None:
    greedy, modest = (make_tenant_key(database_url, tenant) for tenant in ("greedy", "modest"))
    server = start_server(**PACE)
    quiet = slowest(server, modest, 10)
    with attacking(server, greedy, ATTACKS[dimension]) as statuses:
        eventually(lambda: len(statuses) >= 5 or dimension == "running and waiting", within=60)
        busy = slowest(server, modest, 20)
    assert set(statuses) <= {200, 400, 429}
    tally["F40", f"% of the quiet time that the slowest request took beside: {dimension}"] = round(
        100 * busy / quiet
    )
    assert busy <= 2 * quiet + NOISE_S


@pytest.mark.faults
def test_two_replicas_claim_a_full_queue_in_turns_of_the_tenants(
    start_server: StartServer, database_url: str, tally: Tally
) -> None:
    greedy, modest = (make_tenant_key(database_url, tenant) for tenant in ("greedy", "modest"))
    server, _ = (start_server(**{**PACE, "max_running": 2, "max_queued": 1000}) for _ in range(2))
    for _ in range(60):
        assert post(server, greedy, {**SHORT, "background": True}).status_code == 200
    for _ in range(3):
        assert post(server, modest, {**SHORT, "background": True}).status_code == 200

    def ended(tenant: str) -> int:
        with psycopg.connect(database_url) as connection:
            query = "select count(*) from usage_ledger where tenant = %s"
            (count,) = connection.execute(query, [tenant]).fetchone() or (0,)
            return int(count)

    eventually(lambda: ended("modest") == 3, within=60)
    before = ended("greedy")
    assert before < 60, "the queue was served in the order of arrival"
    tally["F41", "of 60 queued before, ended before three of another tenant"] += before
    eventually(lambda: ended("greedy") == 60, within=120)
