import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from server.errors import InvalidRequest
from server.stream import sse
from server.stream.sse import Answer, Endpoint, Turns
from server.wire.errors import DecodeFailure
from tests.unit.server.stream.asgi import Client, inline, now, run

LIMIT = 100
TURN_S = 10.0


@pytest.fixture(autouse=True)
def on_the_virtual_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "run_in_threadpool", inline)


class Handler:
    def __init__(self, error: Exception | None = None) -> None:
        self.bodies: list[bytes] = []
        self._error = error

    def __call__(self, request: Request, body: bytes) -> Response:
        self.bodies.append(body)
        if self._error is not None:
            raise self._error
        return Response(b"fine", headers={"x-request-id": request.state.request_id})


def endpoint(handler: Callable[[Request, bytes], Answer], turns: Turns | None = None) -> Endpoint:
    return Endpoint(handler, max_body=LIMIT, body_seconds=30.0, turns=turns or Turns(1, TURN_S))


def exchange(
    *body: bytes, headers: dict[str, str] | None = None, error: Exception | None = None
) -> tuple[Client, Handler]:
    async def main() -> tuple[Client, Handler]:
        client, handler = Client(*body, headers=headers), Handler(error)
        await client.ask(endpoint(handler))
        return client, handler

    return run(main)


def error_of(client: Client) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(client.body)["error"]
    return found


def test_a_handler_gets_the_whole_body() -> None:
    client, handler = exchange(b"a" * 60, b"", b"b" * 40)
    assert handler.bodies == [b"a" * 60 + b"b" * 40]
    assert (client.status, client.body) == (200, b"fine")
    assert client.headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize("headers", [None, {"content-length": "101"}, {"content-length": "nonsense"}])
def test_a_body_over_the_limit_is_read_and_refused(headers: dict[str, str] | None) -> None:
    client, handler = exchange(b"a" * 60, b"b" * 41, headers=headers)
    assert handler.bodies == []
    assert client.received == 2
    assert (client.status, error_of(client)["code"]) == (413, "request_too_large")


def test_a_body_that_says_it_is_far_over_the_limit_is_not_read() -> None:
    client, handler = exchange(b"a" * 60, headers={"content-length": "10000"})
    assert (client.status, client.received, handler.bodies) == (413, 0, [])


def test_a_body_that_goes_far_over_the_limit_is_not_read_to_its_end() -> None:
    client, handler = exchange(*[b"a" * 90] * 50)
    assert (client.status, handler.bodies) == (413, [])
    assert client.received < 12


@pytest.mark.parametrize("length", ["²", "9" * 6000, "-1", "1e3", ""])
def test_a_content_length_of_any_kind_does_no_harm(length: str) -> None:
    client, _ = exchange(b"a", headers={"content-length": length})
    assert client.status in (200, 413)


def test_a_body_that_does_not_come_is_waited_for_and_refused() -> None:
    async def main() -> tuple[Client, float]:
        client = Client()
        await client.ask(endpoint(Handler()))
        return client, now()

    client, at = run(main)
    assert (client.status, error_of(client)["code"], at) == (408, "request_timeout", 30.0)


def test_a_client_that_leaves_before_its_body_is_whole_is_not_answered() -> None:
    async def main() -> tuple[Client, Handler]:
        client, handler = Client(), Handler()
        half = {"type": "http.request", "body": b"half", "more_body": True}
        messages: Iterator[dict[str, Any]] = iter([half, {"type": "http.disconnect"}])

        async def receive() -> dict[str, Any]:
            return next(messages)

        await endpoint(handler)(client.scope, receive, client.send)
        return client, handler

    client, handler = run(main)
    assert (client.sent, handler.bodies) == ([], [])


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (InvalidRequest("No.", param="p", code="c"), 400, "c"),
        (DecodeFailure("No.", "p", "c"), 400, "c"),
        (RuntimeError("secret at 0x7f"), 500, "internal_error"),
    ],
)
def test_whatever_a_handler_raises_is_an_error_object(error: Exception, status: int, code: str) -> None:
    client, _ = exchange(b"", error=error)
    assert (client.status, error_of(client)["code"]) == (status, code)
    assert set(error_of(client)) == {"message", "type", "param", "code"}
    assert b"secret" not in client.body
    assert client.headers["x-request-id"].startswith("req_")


def test_handlers_do_not_run_on_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()

    def handle(_request: Request, _body: bytes) -> Response:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        return Response(b"fine")

    async def main() -> Client:
        client = Client(b"")
        await client.ask(endpoint(handle))
        return client

    assert asyncio.run(main()).body == b"fine"


def test_a_request_waits_for_its_turn() -> None:
    async def main() -> tuple[int, float]:
        turns = Turns(1, TURN_S)
        client = Client(b"")
        async with turns.one():
            asked = asyncio.ensure_future(client.ask(endpoint(Handler(), turns)))
            await asyncio.sleep(TURN_S / 2)
            assert not client.sent
        await asked
        return client.status, now()

    assert run(main) == (200, TURN_S / 2)


def test_a_request_whose_turn_does_not_come_is_told_to_come_back() -> None:
    async def main() -> tuple[Client, float]:
        turns = Turns(1, TURN_S)
        client = Client(b"")
        async with turns.one():
            await client.ask(endpoint(Handler(), turns))
        return client, now()

    client, time = run(main)
    assert (client.status, client.headers["retry-after"], time) == (503, "1", TURN_S)


def test_a_turn_ends_with_its_request_however_that_ends() -> None:
    async def main() -> list[int]:
        turns = Turns(1, TURN_S)
        clients = [Client(b"") for _ in range(3)]
        for client, handler in zip(clients, [Handler(RuntimeError()), Handler(), Handler()], strict=True):
            await client.ask(endpoint(handler, turns))
        return [client.status for client in clients]

    assert run(main) == [500, 200, 200]
