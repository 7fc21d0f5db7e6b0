"""Budgets as clients meet them: many requests at once, over replicas, and a replica that dies."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx
import psycopg

from tests.acceptance.test_keys import HELLO, make_key
from tests.fix_server import PACED, StartServer
from tests.support.eventually import eventually
from tests.support.server_process import ServerProcess

CALLERS = 120
BUDGET = 500


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def spent(database_url: str) -> tuple[int, int]:
    """Tokens spent, and reserved rows."""
    with psycopg.connect(database_url) as connection:
        row = connection.execute(
            "select (select coalesce(sum(tokens), 0) from spend)::bigint, count(*) from budget_reservations"
        ).fetchone()
    assert row is not None
    return row


def ask_at_once(servers: list[ServerProcess], key: str, body: dict[str, object]) -> Counter[int]:
    def ask(number: int) -> int:
        server = servers[number % len(servers)]
        answer = httpx.post(f"{server.api}/responses", json=body, headers=bearer(key), timeout=60)
        if answer.status_code != 200:
            assert answer.status_code == 429, answer.text
            error = answer.json()["error"]
            assert (error["code"], error["type"]) == ("insufficient_quota", "insufficient_quota")
        return answer.status_code

    with ThreadPoolExecutor(CALLERS) as pool:
        return Counter(pool.map(ask, range(CALLERS)))


def test_120_requests_at_once_on_two_replicas_stay_within_a_budget_and_a_killed_one_keeps_none_of_it(
    start_server: StartServer, database_url: str
) -> None:
    paced = {**PACED, "scripted_tokens": 250}
    servers = [start_server(lease_seconds=2, **paced) for _ in range(2)]
    check_bursts(servers, database_url)
    check_death(servers[0], servers[1], database_url)


def check_bursts(servers: list[ServerProcess], database_url: str) -> None:
    spent_before = 0
    for body in (
        {**HELLO, "max_output_tokens": 16, "store": False},
        {**HELLO, "max_output_tokens": 16},
        {**HELLO, "store": False},
    ):
        key = make_key(database_url, "--budget-tokens", str(BUDGET), "--budget-period", "total").text
        answers = ask_at_once(servers, key, body)
        assert answers[200] >= 1
        eventually(lambda: spent(database_url)[1] == 0, within=10)
        now = spent(database_url)[0]
        assert 0 < now - spent_before <= BUDGET
        spent_before = now


def check_death(dies: ServerProcess, lives: ServerProcess, database_url: str) -> None:
    """What an unstored response reserved on a replica that dies can be used after it is declared dead."""
    key = make_key(database_url, "--budget-tokens", str(BUDGET), "--budget-period", "total").text
    body = {**HELLO, "max_output_tokens": 350}

    def status(server: ServerProcess) -> int:
        return httpx.post(f"{server.api}/responses", json=body, headers=bearer(key), timeout=60).status_code

    streamed = {**body, "stream": True, "store": False}
    with httpx.stream(
        "POST", f"{dies.api}/responses", json=streamed, headers=bearer(key), timeout=60
    ) as held:
        assert held.status_code == 200
        lines = held.iter_lines()
        next(lines)
        assert status(lives) == 429
        dies.kill()
    eventually(lambda: status(lives) == 200, within=30)
