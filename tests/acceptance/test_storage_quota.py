"""A tenant that has stored all that it may: what would be stored is refused, all else goes on."""

from collections.abc import Mapping
from typing import Any

import httpx
import psycopg
import pytest

from tests.acceptance.error_object import check_error
from tests.fix_server import StartServer
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess, run_command
from tests.support.tenants import make_tenant_key, sent

BOUND = 30_000
ASK = {"model": MODEL, "input": "Go on. " * 500}
SAID = [{"role": "user", "content": "Go on."}]
ITEM = {"type": "message", "role": "user", "content": "Go on."}


def post(server: ServerProcess, to: str, body: Mapping[str, Any], key: str) -> httpx.Response:
    return httpx.post(f"{server.api}/{to}", json=body, headers=sent(key), timeout=60)


def check_refused(answer: httpx.Response) -> None:
    error = check_error(answer, 429, "rate_limit_error")
    assert error["code"] == "storage_quota_exceeded"
    assert int(answer.headers["retry-after"]) >= 1


def rows(database_url: str, tenant: str) -> tuple[int, int]:
    with psycopg.connect(database_url) as connection:
        found = connection.execute(
            "select (select count(*) from responses where tenant = %(tenant)s),"
            " (select count(*) from conversations where tenant = %(tenant)s)",
            {"tenant": tenant},
        ).fetchone()
    assert found is not None
    return found[0], found[1]


@pytest.fixture
def server(start_server: StartServer) -> ServerProcess:
    return start_server(max_stored_bytes_of_tenant=BOUND, scripted_tokens=4)


def test_a_tenant_beyond_its_bytes_stores_nothing_and_another_is_served(
    server: ServerProcess, database_url: str
) -> None:
    greedy = make_tenant_key(database_url, "greedy")
    modest = make_tenant_key(database_url, "modest")
    conversation = post(server, "conversations", {}, greedy).json()["id"]
    stored: list[str] = []

    def fill() -> httpx.Response | None:
        answer = post(server, "responses", ASK, greedy)
        if answer.status_code != 200:
            return answer
        stored.append(answer.json()["id"])
        return None

    refused = eventually(fill, within=60)
    assert refused is not None
    check_refused(refused)
    before = rows(database_url, "greedy")
    storing: list[tuple[str, dict[str, Any]]] = [
        ("responses", ASK),
        ("responses", {**ASK, "stream": True}),
        ("responses", {**ASK, "background": True}),
        ("chat/completions", {"model": MODEL, "messages": SAID, "store": True, "n": 2}),
        ("conversations", {}),
        (f"conversations/{conversation}/items", {"items": [ITEM]}),
    ]
    for to, body in storing:
        check_refused(post(server, to, body, greedy))
    assert rows(database_url, "greedy") == before
    shown = run_command("storage", database_url=database_url).stdout.splitlines()
    assert [line.split("\t")[0] for line in shown] == ["greedy"]
    assert int(shown[0].split("\t")[1]) >= BOUND

    passing: list[tuple[str, dict[str, Any]]] = [
        ("responses", {**ASK, "store": False}),
        ("chat/completions", {"model": MODEL, "messages": SAID}),
        ("completions", {"model": MODEL, "prompt": "Go on."}),
    ]
    for to, body in passing:
        assert post(server, to, body, greedy).status_code == 200
    one = f"{server.api}/responses/{stored[0]}"
    assert httpx.get(one, headers=sent(greedy)).status_code == 200
    assert post(server, "responses", ASK, modest).status_code == 200

    for response in stored:
        deleted = httpx.delete(f"{server.api}/responses/{response}", headers=sent(greedy))
        assert deleted.status_code == 200
    eventually(lambda: post(server, "responses", ASK, greedy).status_code == 200, within=60)


def test_what_was_accepted_before_is_found_again_with_its_key(
    server: ServerProcess, database_url: str
) -> None:
    greedy = make_tenant_key(database_url, "greedy")
    repeated = {**sent(greedy), "Idempotency-Key": "once"}

    def again() -> httpx.Response:
        return httpx.post(f"{server.api}/responses", json=ASK, headers=repeated, timeout=60)

    first = again().json()["id"]
    eventually(lambda: post(server, "responses", ASK, greedy).status_code == 429, within=60)
    assert again().json()["id"] == first
