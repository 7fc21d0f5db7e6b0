"""What one caller may have at a time: 429 or 503 before a response exists, never one that fails."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import psycopg
import pytest

from tests.acceptance.error_object import check_error
from tests.fix_server import SCRIPTED, StartServer, running
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess
from tests.support.sse import create
from tests.support.tenants import make_tenant_key, sent

ASK = {"model": MODEL, "input": "Go on."}
SLOW: dict[str, object] = {"scripted_tokens": 5000, "scripted_step_seconds": 0.05, "grace_seconds": 0}
SAID = [{"role": "user", "content": "Go on."}]


def post(
    server: ServerProcess,
    body: Mapping[str, Any],
    key: str | None = None,
    to: str = "responses",
) -> httpx.Response:
    return httpx.post(f"{server.api}/{to}", json=body, headers=sent(key), timeout=60)


def get(server: ServerProcess, response: str) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{server.api}/responses/{response}", timeout=60).json()
    return found


def rows(database_url: str) -> int:
    with psycopg.connect(database_url) as connection:
        (count,) = connection.execute("select count(*) from responses").fetchone() or (0,)
        return int(count)


def check_refused(answer: httpx.Response, status: int) -> None:
    kind = {429: "rate_limit_error", 503: "server_error"}[status]
    check_error(answer, status, kind)
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.headers["x-should-retry"] == "true"


@pytest.fixture(scope="module")
def busy(module_database: str) -> Iterator[ServerProcess]:
    """A server that has all that it takes: one response generated, and one waiting."""
    settings = {**SCRIPTED, **SLOW, "max_running": 1, "max_waiting": 1}
    with contextmanager(running)(module_database, settings) as server, ExitStack() as stack:
        for _ in range(2):
            stream = stack.enter_context(create(server.url, ASK))
            stream.take(1)
        yield server


@pytest.mark.parametrize(
    ("to", "body"),
    [
        ("responses", ASK),
        ("responses", {**ASK, "stream": True}),
        ("responses", {**ASK, "store": False}),
        ("chat/completions", {"model": MODEL, "messages": SAID}),
        ("chat/completions", {"model": MODEL, "messages": SAID, "stream": True}),
        ("completions", {"model": MODEL, "prompt": "Go on."}),
    ],
)
def test_a_full_server_refuses_before_there_is_a_response(
    busy: ServerProcess, module_database: str, to: str, body: dict[str, Any]
) -> None:
    before = rows(module_database)
    check_refused(post(busy, body, to=to), 503)
    assert rows(module_database) == before


def test_what_is_refused_is_taken_once_another_response_has_ended(start_server: StartServer) -> None:
    server = start_server(max_running=1, max_waiting=0, **SLOW)
    with create(server.url, ASK) as stream:
        stream.take(1)
        check_refused(post(server, ASK), 503)
    short = {**ASK, "max_output_tokens": 1}
    eventually(lambda: post(server, short).status_code == 200, within=60)


def test_all_choices_of_a_completion_have_room_or_none_has(
    start_server: StartServer, database_url: str
) -> None:
    server = start_server(max_running=2, max_waiting=1, **SLOW)
    with create(server.url, ASK) as stream:
        stream.take(1)
        chat = {"model": MODEL, "messages": SAID, "store": True, "max_completion_tokens": 1}
        refused = post(server, {**chat, "n": 4}, to="chat/completions")
        assert check_error(refused, 400, "invalid_request_error")["param"] == "n"
        before = rows(database_url)
        check_refused(post(server, {**chat, "n": 3}, to="chat/completions"), 503)
        assert rows(database_url) == before
        assert post(server, {**chat, "n": 2}, to="chat/completions").status_code == 200


def test_a_tenant_has_half_of_the_server_and_another_tenant_the_other_half(
    start_server: StartServer, database_url: str
) -> None:
    greedy, modest = (make_tenant_key(database_url, tenant) for tenant in ("greedy", "modest"))
    server = start_server(max_running=4, max_waiting=0, **SLOW)
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(create(server.url, ASK, key=greedy)).take(1)
        check_refused(post(server, ASK, greedy), 429)
        assert post(server, {**ASK, "max_output_tokens": 1}, modest).status_code == 200


def test_a_tenant_has_half_of_the_queue_and_another_tenant_the_other_half(
    start_server: StartServer, database_url: str
) -> None:
    greedy, modest = (make_tenant_key(database_url, tenant) for tenant in ("greedy", "modest"))
    server = start_server(max_running=1, max_queued=4, **SLOW)
    background = {**ASK, "background": True}
    running = post(server, background, greedy).json()["id"]
    eventually(
        lambda: (
            httpx.get(f"{server.api}/responses/{running}", headers=sent(greedy)).json()["status"]
            == "in_progress"
        ),
        within=60,
    )
    assert [post(server, background, greedy).status_code for _ in range(2)] == [200, 200]
    before = rows(database_url)
    check_refused(post(server, background, greedy), 429)
    assert rows(database_url) == before
    assert [post(server, background, modest).status_code for _ in range(2)] == [200, 200]


def test_a_priority_before_others_needs_a_key_that_allows_it(
    keyed_server: ServerProcess, keyed_database: str
) -> None:
    server = keyed_server
    plain = make_tenant_key(keyed_database, "plain")
    urgent = make_tenant_key(keyed_database, "urgent", priority_floor=-5)
    refused = check_error(post(server, {**ASK, "priority": -1}, plain), 400, "invalid_request_error")
    assert refused["param"] == "priority"
    chat = {"model": MODEL, "messages": SAID, "priority": -1}
    check_error(post(server, chat, plain, "chat/completions"), 400, "invalid_request_error")
    check_error(post(server, {**ASK, "priority": -6}, urgent), 400, "invalid_request_error")
    allowed = [(plain, 0), (plain, 7), (urgent, -5)]
    assert [post(server, {**ASK, "priority": asked}, key).status_code for key, asked in allowed] == [200] * 3


def test_without_a_key_any_priority_may_be_asked_for(scripted_server: ServerProcess) -> None:
    assert post(scripted_server, {**ASK, "priority": -1}).status_code == 200


def test_a_background_response_of_lower_urgency_is_begun_after_later_ones_of_its_tenant(
    start_server: StartServer, database_url: str
) -> None:
    server = start_server(max_running=1, **SLOW)
    queued = {**ASK, "background": True, "max_output_tokens": 1}
    with create(server.url, ASK) as stream:
        stream.take(1)
        lesser, usual = (
            post(server, {**queued, **priority}).json()["id"] for priority in ({"priority": 5}, {})
        )
        assert [get(server, answer)["status"] for answer in (lesser, usual)] == ["queued", "queued"]
    eventually(lambda: get(server, lesser)["status"] == "incomplete", within=60)
    assert get(server, usual)["status"] == "incomplete"
    with psycopg.connect(database_url) as connection:
        query = "select priority from responses where background order by started_at"
        assert connection.execute(query).fetchall() == [(0,), (5,)]


def test_choices_tokens_and_log_probabilities_are_bounded_together(scripted_server: ServerProcess) -> None:
    chat = {"model": MODEL, "messages": SAID, "logprobs": True, "top_logprobs": 20, "n": 16}
    refused = post(scripted_server, {**chat, "max_completion_tokens": 1500}, to="chat/completions")
    assert check_error(refused, 400, "invalid_request_error")["param"] == "top_logprobs"
    fewer = post(scripted_server, {**chat, "max_completion_tokens": 8}, to="chat/completions")
    assert fewer.status_code == 200
