"""Rate limits as clients meet them: over replicas, on every API, settled where a response ends."""

import base64
import http.client
import json
import re
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import httpx

from tests.acceptance.error_object import check_error
from tests.acceptance.test_keys import HELLO, make_key
from tests.fix_server import StartServer
from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess, run_command
from tests.support.websocket import WebSocket

CALLERS = 64
LIMIT = 160
SHORT = {**HELLO, "max_output_tokens": 16, "store": False}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_two_replicas_and_64_callers_get_the_limit_and_no_more(
    start_server: StartServer, database_url: str
) -> None:
    run_command("tenants", "create", "default", "--rpm", str(LIMIT), database_url=database_url)
    keys = [make_key(database_url).text for _ in range(4)]
    urls = [start_server().api for _ in range(2)]

    def ask(number: int) -> Counter[int]:
        headers = bearer(keys[number % len(keys)])
        answers: Counter[int] = Counter()
        with httpx.Client(base_url=urls[number // len(keys) % 2], headers=headers, timeout=60) as client:
            for _ in range(5):
                answers[client.post("/responses", json=SHORT).status_code] += 1
        return answers

    began = time.monotonic()
    with ThreadPoolExecutor(CALLERS) as pool:
        answers = sum(pool.map(ask, range(CALLERS)), Counter[int]())
    filled = (time.monotonic() - began) * LIMIT / 60
    assert set(answers) == {200, 429}
    assert LIMIT <= answers[200] <= LIMIT + filled


def test_every_api_is_counted_and_answers_with_the_headers(
    keyed_server: ServerProcess, keyed_database: str
) -> None:
    server = keyed_server
    key = make_key(keyed_database, "--rpm", "6", "--tpm", "100000").text
    once = {"idempotency-key": "once"}
    said = [{"role": "user", "content": "Hello"}]
    left = []
    with httpx.Client(base_url=server.url, headers=bearer(key), timeout=60) as client:
        for path, body in (
            ("/v1/responses", SHORT),
            ("/v1/responses", {**SHORT, "stream": True}),
            ("/v1/chat/completions", {"model": MODEL, "messages": said, "n": 2}),
            ("/v1/completions", {"model": MODEL, "prompt": "Hello", "stream": True}),
        ):
            answer = client.post(path, json=body)
            assert answer.status_code == 200
            assert answer.headers["x-ratelimit-limit-requests"] == "6"
            assert answer.headers["x-ratelimit-limit-tokens"] == "100000"
            left.append(int(answer.headers["x-ratelimit-remaining-requests"]))
        assert left == [5, 4, 3, 2]
        assert "x-ratelimit-limit-requests" not in client.get("/v1/models").headers
        assert client.post("/v1/responses/input_tokens", json=HELLO).status_code == 200
        check_error(
            client.post("/v1/responses", json={**HELLO, "temperature": 9}), 400, "invalid_request_error"
        )
        opened = opening_headers(server, key)
        assert (opened["x-ratelimit-limit-requests"], opened["x-ratelimit-remaining-requests"]) == ("6", "2")
        assert client.post("/v1/responses", json={**SHORT, "store": True}, headers=once).status_code == 200
        with WebSocket(server.url, headers=bearer(key)) as socket:
            assert socket.turn(SHORT)[-1]["type"] == "response.incomplete"
            (refused,) = socket.turn(SHORT)
        assert (refused["status"], refused["error"]["type"]) == (429, "requests")
        for again in ({"json": SHORT}, {"json": {**SHORT, "store": True}, "headers": once}):
            error = check_error(client.post("/v1/responses", **again), 429, "requests")
            assert error["code"] == "rate_limit_exceeded"


def opening_headers(server: ServerProcess, key: str) -> http.client.HTTPMessage:
    """The headers with which a WebSocket is opened."""
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=30)
    nonce = base64.b64encode(b"0123456789abcdef").decode()
    headers = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
    connection.request("GET", "/v1/responses", headers={**bearer(key), **headers, "Sec-WebSocket-Key": nonce})
    answer = connection.getresponse()
    assert answer.status == 101
    connection.close()
    return answer.headers


def test_tokens_of_a_background_response_are_settled_where_it_ends(
    start_server: StartServer, database_url: str
) -> None:
    key = make_key(database_url, "--tpm", "10000").text
    accepts, generates = start_server(role="api"), start_server(role="worker")
    assert generates
    large = {**HELLO, "max_output_tokens": 8000, "background": True}

    def ask() -> httpx.Response:
        return httpx.post(f"{accepts.api}/responses", json=large, headers=bearer(key), timeout=60)

    first = ask()
    assert first.status_code == 200
    assert int(first.headers["x-ratelimit-remaining-tokens"]) < 6000
    path = f"{accepts.api}/responses/{first.json()['id']}"
    eventually(lambda: httpx.get(path, headers=bearer(key)).json()["status"] == "completed", within=30)
    eventually(lambda: ask().status_code == 200, within=10)


def test_a_refusal_for_tokens_says_which(start_server: StartServer, database_url: str) -> None:
    key = make_key(database_url, "--tpm", "3000").text
    server = start_server(scripted_tokens=5000, scripted_step_seconds=0.02)
    body = {**HELLO, "max_output_tokens": 2000, "background": True}
    answers = [httpx.post(f"{server.api}/responses", json=body, headers=bearer(key)) for _ in range(2)]
    assert answers[0].status_code == 200
    error = check_error(answers[1], 429, "tokens")
    assert re.search(r"on tokens per min: Limit 3000, Used (1\d|20)\d\d,", error["message"])
    assert json.loads(answers[1].headers["retry-after"]) <= 60
    too_large = httpx.post(
        f"{server.api}/responses", json={**body, "max_output_tokens": 3000}, headers=bearer(key)
    )
    error = check_error(too_large, 429, "tokens")
    assert "Request too large" in error["message"]
    assert too_large.headers["x-should-retry"] == "false"
