import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from threading import Event
from typing import Any

import pytest
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from server.errors import InvalidRequest, MissingScope, NotAuthenticated
from server.http.asgi import thread_pools as threads
from server.http.asgi.answers import Answer
from server.http.asgi.endpoint import AuthenticatedEndpoint, EndpointContext, PublicEndpoint
from server.http.asgi.request_log import RequestLog
from server.http.asgi.thread_pools import ThreadPool, ThreadShare, make_thread_pools
from server.limits.shared_limit import SharedLimit
from tests.support.server_process import PATIENCE_S
from tests.unit.server.http.asgi.asgi_messages import Client, inline, now, run

LIMIT = 100


@pytest.fixture(autouse=True)
def on_the_virtual_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "run_in_thread", inline)


class Handler:
    def __init__(self, error: Exception | None = None) -> None:
        self.bodies: list[bytes] = []
        self._error = error

    def __call__(self, request: Request, body: bytes) -> Response:
        self.bodies.append(body)
        if self._error is not None:
            raise self._error
        return Response(b"fine", headers={"x-request-id": request.state.request_id})


def context(
    *,
    identify: Callable[[HTTPConnection], str] = lambda _request: "acme",
    bodies: SharedLimit | None = None,
    requests: SharedLimit | None = None,
    answers: SharedLimit | None = None,
) -> EndpointContext[str]:
    return EndpointContext(
        expected_share=lambda _request: ThreadShare("acme"),
        authenticate=identify,
        share_of=ThreadShare,
        threads=make_thread_pools(5),
        requests=requests or SharedLimit("requests", total=10, per_tenant=10),
        bodies=bodies or SharedLimit("bytes", total=1000, per_tenant=1000),
        answers=answers or SharedLimit("bytes of answers", total=1000, per_tenant=1000),
    )


def endpoint(
    handler: Callable[[Request, bytes], Answer],
    at: EndpointContext[str] | None = None,
) -> RequestLog:
    return endpoint_of_caller(lambda request, _caller, body: handler(request, body), at)


def endpoint_of_caller(
    handler: Callable[[Request, str, bytes], Answer],
    at: EndpointContext[str] | None = None,
    authorize: Callable[[str], None] = lambda _caller: None,
) -> RequestLog:
    at = at or context()
    return RequestLog(
        AuthenticatedEndpoint(
            handler, at, at.threads.write, authorize=authorize, max_body=LIMIT, body_seconds=30.0
        )
    )


class KnownKeys:
    """Callers by key, as they were and as they are; what a caller may do is in its name."""

    def __init__(self, known: str | None, now: str | None) -> None:
        self.lookups: list[int] = []
        self.client = Client(b"body")
        self._known, self._now = known, now

    def __call__(self, _request: HTTPConnection) -> str:
        self.lookups.append(self.client.received)
        if self._now is None:
            raise NotAuthenticated("no key")
        return self._now

    def ask(self) -> list[tuple[str, bytes]]:
        """The calls of the handler: its caller and the body."""
        calls: list[tuple[str, bytes]] = []

        def handle(_request: Request, caller: str, body: bytes) -> Answer:
            calls.append((caller, body))
            return Response()

        def authorize(caller: str) -> None:
            if "writes" not in caller:
                raise MissingScope("write")

        async def main() -> None:
            at = replace(context(identify=self), known_caller=lambda _request: self._known)
            await self.client.ask(endpoint_of_caller(handle, at, authorize))

        run(main)
        return calls


@pytest.mark.parametrize("known", [None, "acme reads"])
def test_a_key_that_was_not_valid_for_it_before_is_looked_up_before_the_body(
    known: str | None,
) -> None:
    keys = KnownKeys(known, "acme writes")
    assert keys.ask() == [("acme writes", b"body")]
    assert keys.lookups == [0]


def test_a_known_key_is_looked_up_once_and_its_handler_gets_the_caller_as_it_is_now() -> None:
    keys = KnownKeys("acme writes", "acme writes and reads")
    assert keys.ask() == [("acme writes and reads", b"body")]
    assert keys.lookups == [1]


@pytest.mark.parametrize(("now", "status"), [(None, 401), ("acme reads", 403)])
def test_a_known_key_that_has_ended_or_changed_is_refused(now: str | None, status: int) -> None:
    keys = KnownKeys("acme writes", now)
    assert keys.ask() == []
    assert keys.client.status == status


@pytest.mark.parametrize(("now", "status"), [(None, 401), ("acme reads", 403)])
def test_an_unknown_key_is_refused_before_its_body_is_read(now: str | None, status: int) -> None:
    keys = KnownKeys(None, now)
    assert keys.ask() == []
    assert (keys.client.status, keys.client.received_before_answer) == (status, 0)


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
    assert (client.status, client.received_before_answer, handler.bodies) == (413, 0, [])


def test_a_body_that_goes_far_over_the_limit_is_not_read_to_its_end() -> None:
    client, handler = exchange(*[b"a" * 90] * 50)
    assert (client.status, handler.bodies) == (413, [])
    assert client.received_before_answer < 12


@pytest.mark.parametrize("length", ["²", "9" * 6000, "-1", "1e3", ""])
def test_a_content_length_of_any_kind_does_no_harm(length: str) -> None:
    client, _ = exchange(b"a", headers={"content-length": length})
    assert client.status in (200, 413)


def test_a_body_that_does_not_come_is_waited_for_and_refused() -> None:
    client, _ = exchange(headers={"content-length": "1"})
    assert (client.status, error_of(client)["code"], client.times[0]) == (408, "request_timeout", 30.0)


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
        (InvalidRequest("No.", "p", "c"), 400, "c"),
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


def stranger(_request: HTTPConnection) -> str:
    raise NotAuthenticated("Who?")


def test_who_has_no_key_is_refused_before_its_body_is_read_and_hears_it() -> None:
    async def main() -> tuple[Client, Handler, SharedLimit]:
        bodies = SharedLimit("bytes", total=1000, per_tenant=1000)
        client, handler = Client(*[b"a" * 50] * 3, headers={"content-length": "150"}), Handler()
        await client.ask(endpoint(handler, context(identify=stranger, bodies=bodies)))
        return client, handler, bodies

    client, handler, bodies = run(main)
    assert (client.status, client.received_before_answer, handler.bodies) == (401, 0, [])
    assert client.ended
    assert client.received == 3, "the rest was read and dropped, so that the answer is not destroyed"
    assert client.headers["connection"] == "close"
    assert bodies.used() == 0


def test_a_refused_client_that_goes_on_sending_is_left_after_a_while() -> None:
    client, _ = exchange_at(context(identify=stranger), headers={"content-length": "150"})
    assert (client.status, client.ended, client.times[-1]) == (401, True, 2.0)


def exchange_at(
    at: EndpointContext[str], *body: bytes, headers: dict[str, str] | None = None
) -> tuple[Client, Handler]:
    async def main() -> tuple[Client, Handler]:
        client, handler = Client(*body, headers=headers), Handler()
        await client.ask(endpoint(handler, at))
        return client, handler

    return run(main)


@pytest.mark.parametrize(
    ("total", "of_tenant", "of_others", "status"),
    [(1000, 50, 0, 429), (100, 60, 50, 503), (1000, 60, 0, 200)],
)
def test_the_length_that_a_body_declares_counts_before_any_of_it_is_read(
    total: int, of_tenant: int, of_others: int, status: int
) -> None:
    bodies = SharedLimit("bytes", total=total, per_tenant=of_tenant)
    bodies.acquire("other", of_others)
    client, _ = exchange_at(context(bodies=bodies), b"a" * 60, headers={"content-length": "60"})
    assert client.status == status
    assert client.received_before_answer == (1 if status == 200 else 0)
    assert bodies.used("acme") == 0


def test_a_body_without_a_length_counts_as_it_arrives() -> None:
    bodies = SharedLimit("bytes", total=1000, per_tenant=50)
    client, handler = exchange_at(
        context(bodies=bodies), *[b"a" * 20] * 5, headers={"transfer-encoding": "chunked"}
    )
    assert (client.status, client.received_before_answer, handler.bodies) == (429, 3, [])
    assert bodies.used() == 0


def test_a_tenant_with_as_many_requests_as_it_may_have_is_told_to_come_back() -> None:
    requests = SharedLimit("requests in progress", total=10, per_tenant=1)
    requests.acquire("acme")
    client, handler = exchange_at(context(requests=requests), b"")
    assert (client.status, client.headers["retry-after"], handler.bodies) == (429, "1", [])
    requests.release("acme")
    client, _ = exchange_at(context(requests=requests), b"")
    assert client.status == 200
    assert requests.used() == 0


def test_a_request_that_is_given_up_with_the_process_gets_an_error_object() -> None:
    class Endless:
        async def __call__(self, scope: object, receive: object, send: object) -> None:  # noqa: ARG002
            await asyncio.Event().wait()

    async def main() -> Client:
        client = Client(b"")
        asked = client.ask(endpoint(lambda _request, _body: Endless()))
        await asyncio.sleep(1)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        return client

    client = run(main)
    assert (client.status, error_of(client)["code"], client.ended) == (503, "overloaded", True)


def test_however_many_ask_one_call_at_a_time_answers_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    calls: list[int] = []
    over = Event()

    def look(_request: Request) -> Response:
        calls.append(1)
        over.wait(PATIENCE_S)
        return Response(b"ready")

    async def main() -> list[Client]:
        app = RequestLog(PublicEndpoint(look, ThreadPool(1)))
        clients = [Client(b"") for _ in range(100)]
        asked = [client.ask(app) for client in clients]
        await asyncio.sleep(0)
        over.set()
        await asyncio.gather(*asked)
        return clients

    clients = asyncio.run(main())
    assert len(calls) == 1
    assert {(client.status, client.body) for client in clients} == {(200, b"ready")}
    assert len({client.headers["x-request-id"] for client in clients}) == 100


def test_what_is_answered_to_everybody_is_looked_up_again_after_a_second() -> None:
    calls: list[float] = []

    def look(_request: Request) -> Response:
        calls.append(now())
        return Response(b"ready")

    async def main() -> None:
        app = RequestLog(PublicEndpoint(look, ThreadPool(1)))
        for _ in range(30):
            await Client(b"").ask(app)
            await asyncio.sleep(0.1)

    run(main)
    assert len(calls) == 3


def test_answers_that_are_not_taken_are_bounded_in_bytes() -> None:
    answers = SharedLimit("bytes of answers", total=300_000, per_tenant=150_000)

    def ask(size: int, method: str = "GET", *, stalled: bool = False) -> "tuple[Client, asyncio.Task[None]]":
        client = Client(b"")
        client.scope["method"], client.stalled = method, stalled
        return client, client.ask(endpoint(lambda _request, _body: Response(b"a" * size), at))

    async def main() -> list[int]:
        _, unread = ask(100_000, stalled=True)
        await asyncio.sleep(1)
        asked = [ask(100_000), ask(1000), ask(100_000, "POST")]
        await asyncio.wait([task for _, task in asked])
        unread.cancel()
        await asyncio.wait([unread])
        asked.append(ask(100_000))
        await asked[-1][1]
        return [client.status for client, _ in asked]

    at = context(answers=answers)
    assert run(main) == [429, 200, 200, 200]
    assert answers.used() == 0
