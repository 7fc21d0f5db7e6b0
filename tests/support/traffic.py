"""Clients that stream, create and read while a test makes trouble, and what each of them was told.

Every answer is kept with the time that it took. `check` holds them against what is stored afterwards.
"""

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, LiteralString, Self

import httpx
import psycopg

from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess
from tests.support.sse import DONE, KEEP_ALIVE, parse

PATIENCE_S = 60.0
P2_SECONDS = 30.0
"""How long after the end of the trouble a response may take to end."""


@dataclass
class Answer:
    """What one request was answered; status 0 if the connection broke."""

    status: int
    seconds: float
    body: dict[str, Any]


@dataclass
class Followed:
    """What one client received of a stream, and its longest silence, keep-alives not counted."""

    received: bytes = b""
    longest_pause: float = 0.0
    status: int = 0

    @property
    def events(self) -> bytes:
        """The bytes up to the end of the last whole block, without comments."""
        whole = self.received[: self.received.rfind(b"\n\n") + 2] if b"\n\n" in self.received else b""
        return whole.replace(KEEP_ALIVE, b"")

    @property
    def is_whole(self) -> bool:
        return self.received.endswith(DONE)

    @property
    def response_id(self) -> str | None:
        """None if the client was never told of one."""
        frames = parse(self.events)
        return frames[0].json["response"]["id"] if frames else None


@dataclass
class Traffic:
    """So many clients of each kind. As a context it makes them work until its end, streams to their own."""

    server: ServerProcess
    streams: int = 8
    tokens: int = 500
    writers: int = 2
    readers: int = 2
    followed: list[Followed] = field(default_factory=list)
    created: list[Answer] = field(default_factory=list)
    read: list[Answer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stopping = threading.Event()
        self._leaving = threading.Event()
        self._threads: list[threading.Thread] = []
        self._client = httpx.Client(
            timeout=PATIENCE_S, limits=httpx.Limits(max_connections=1000, max_keepalive_connections=0)
        )

    def __enter__(self) -> Self:
        """All streams have begun."""
        known = self.create().body["id"]
        self.followed = [Followed() for _ in range(self.streams)]
        work: list[Callable[[], None]] = [self._following(one) for one in self.followed]
        work += [lambda: self._repeat(self.created, self.create)] * self.writers
        work += [lambda: self._repeat(self.read, lambda: self.retrieve(known))] * self.readers
        self._threads = [threading.Thread(target=act, daemon=True) for act in work]
        for thread in self._threads:
            thread.start()
        eventually(lambda: all(one.events for one in self.followed), within=PATIENCE_S)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stopping.set()
        until = monotonic() + (PATIENCE_S if kind is None else 0.0)
        for thread in self._threads:
            thread.join(max(0.0, until - monotonic()))
        waiting = [thread for thread in self._threads if thread.is_alive()]
        self._client.close()
        assert kind is not None or not waiting, f"{len(waiting)} clients were never answered"

    def leave(self) -> None:
        """The streams' clients hang up at their next event."""
        self._leaving.set()

    def create(self) -> Answer:
        body = {"model": MODEL, "input": "Hello", "max_output_tokens": 3}
        return self._ask(lambda: self._client.post(f"{self.server.api}/responses", json=body))

    def retrieve(self, response_id: str) -> Answer:
        return self._ask(lambda: self._client.get(f"{self.server.api}/responses/{response_id}"))

    def _ask(self, send: Callable[[], httpx.Response]) -> Answer:
        began = monotonic()
        try:
            answer = send()
        except (httpx.HTTPError, RuntimeError):  # the latter when the client has been closed
            return Answer(0, monotonic() - began, {})
        return Answer(answer.status_code, monotonic() - began, answer.json())

    def _repeat(self, into: list[Answer], ask: Callable[[], Answer]) -> None:
        while not self._stopping.wait(0.02):
            into.append(ask())

    def _following(self, one: Followed) -> Callable[[], None]:
        def follow() -> None:
            body = {"model": MODEL, "input": "Go on.", "stream": True, "max_output_tokens": self.tokens}
            try:
                with self._client.stream("POST", f"{self.server.api}/responses", json=body) as response:
                    one.status = response.status_code
                    self._receive(one, response)
            except (httpx.HTTPError, RuntimeError):
                return

        return follow

    def _receive(self, one: Followed, response: httpx.Response) -> None:
        last = monotonic()
        for block in response.iter_bytes():
            if self._leaving.is_set():
                return
            one.received += block
            if block != KEEP_ALIVE:
                one.longest_pause = max(one.longest_pause, monotonic() - last)
                last = monotonic()


def check_streams(traffic: Traffic, server: ServerProcess) -> None:
    """Every stream came whole, with all its tokens, and is stored as it was told."""
    for one in traffic.followed:
        assert one.is_whole, one.received[-200:]
        check_replay(one, server)
        final = parse(one.events)[-1].json["response"]
        assert final["usage"]["output_tokens"] == traffic.tokens


def check_replay(one: Followed, server: ServerProcess) -> None:
    """What a client was told is the beginning of what is stored, and that is whole."""
    response_id = one.response_id
    assert response_id is not None
    stored = httpx.get(f"{server.api}/responses/{response_id}?stream=true", timeout=PATIENCE_S).content
    assert stored.startswith(one.events.removesuffix(DONE)), "a client saw what is not stored"
    frames = parse(stored)
    assert stored.endswith(DONE)
    assert [frame.number for frame in frames] == list(range(len(frames)))


def check_answers(traffic: Traffic) -> Counter[int]:
    """Every request was answered, by what it wanted or by a refusal that says to try again."""
    answers = traffic.created + traffic.read
    for answer in answers:
        assert answer.status in (200, 503), answer
        if answer.status == 503:
            assert set(answer.body) == {"error"}, answer
            assert answer.body["error"]["type"] == "server_error", answer
    return Counter(answer.status for answer in answers)


def check_store(traffic: Traffic, server: ServerProcess, database_url: str) -> int:
    """Everything acknowledged is stored once and has ended; the responses of which nobody was told."""
    told = [answer.body for answer in traffic.created if answer.status == 200]
    for body in told:
        assert httpx.get(f"{server.api}/responses/{body['id']}", timeout=PATIENCE_S).json() == body
    with psycopg.connect(database_url, autocommit=True) as connection:
        eventually(lambda: _count(connection, _UNENDED) == 0, within=P2_SECONDS)
        assert _count(connection, _UNMETERED) == 0
        return _count(connection, "select count(*) from responses") - len(told) - len(traffic.followed) - 1


_UNENDED = "select count(*) from responses where status in ('queued', 'in_progress')"
_UNMETERED = """
    select count(*) from responses r where 1 <> (
        select count(*) from usage_ledger u where u.tenant = r.tenant and u.response_id = r.id)
"""


def _count(connection: psycopg.Connection, query: LiteralString) -> int:
    row = connection.execute(query).fetchone()
    assert row is not None
    return int(row[0])
