"""Clients that follow one response each through whatever happens to the servers, and keep every byte.

A client sends its request with an idempotency key until it is told of a response, and then comes back with
`starting_after` until the stream has ended. `check` holds what it saw against what is stored.
"""

import faulthandler
import logging
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from time import monotonic
from typing import Any, Self
from uuid import uuid4

import httpx

from tests.support.eventually import eventually
from tests.support.server_process import MODEL, ServerProcess
from tests.support.sse import DONE, KEEP_ALIVE, Frame, parse, text_of

log = logging.getLogger(__name__)

PATIENCE_S = 60.0
P2_SECONDS = 30.0
"""Promise P2: how long after the end of the trouble a response may take to end."""
SILENCE_S = 20.0
"""After which a client tries again; a server that is there says something within 15 s."""
PAUSE_S = 0.05
"""Between two tries to reach a server that is not there."""

HTTP = httpx.Client(
    timeout=PATIENCE_S, limits=httpx.Limits(max_connections=None, max_keepalive_connections=0)
)
"""For all threads: to make a client costs more than a request."""

Body = dict[str, Any]
Where = Callable[[], ServerProcess]


class Countdown:
    """Set when that many events have been received by all of its clients together."""

    def __init__(self, events: int) -> None:
        self._left = events
        self._lock = threading.Lock()
        self._reached = threading.Event()

    def count(self, events: int) -> None:
        with self._lock:
            self._left -= events
            if self._left <= 0:
                self._reached.set()

    def wait(self, over: Callable[[], bool]) -> None:
        """Until then, or until there is no more to receive."""
        eventually(lambda: self._reached.is_set() or over(), within=PATIENCE_S)


class Times(Countdown):
    """Records when events of its one client came."""

    def __init__(self) -> None:
        super().__init__(0)
        self._times: list[float] = []

    def count(self, events: int) -> None:
        self._times.append(monotonic())
        super().count(events)

    @property
    def longest_pause(self) -> float:
        """Seconds between two parts of the stream."""
        return max(later - earlier for earlier, later in pairwise(self._times))


@dataclass
class Attached:
    """One client. `ended_at` is when it had the last byte, by this process's clock."""

    body: Body
    countdown: Countdown = field(default_factory=lambda: Countdown(0))
    key: str = field(default_factory=lambda: uuid4().hex)
    received: bytes = b""
    attempts: int = 0
    torn: int = 0
    """How many answers broke off, in a frame or without HTTP's end."""
    ended_at: float | None = None
    by_id: bool = False
    """It resumes by the id of its last event instead of the number."""
    again: frozenset[int] = frozenset({503})
    """Status codes after which it tries again."""

    @property
    def frames(self) -> list[Frame]:
        return parse(self.received)

    @property
    def response_id(self) -> str:
        identifier: str = parse(self.received[: self.received.index(b"\n\n") + 2])[0].json["response"]["id"]
        return identifier

    @property
    def final(self) -> Body:
        response: Body = self.frames[-1].json["response"]
        return response

    def follow(self, where: Where, given_up: threading.Event) -> None:
        """Until the end. Fails when the client is answered by anything but its stream or a 503."""
        while not self.received.endswith(DONE) and not given_up.is_set():
            self.attempts += 1
            try:
                self._attach(where().api)
            except httpx.HTTPError as error:
                if not isinstance(error, httpx.ConnectError):  # which come by the thousand
                    log.warning("attempt %d after %r: %r", self.attempts, self.received[-40:], error)
                given_up.wait(PAUSE_S)
        self.ended_at = monotonic()

    def _attach(self, api: str) -> None:
        with self._open(api) as answer:
            if answer.status_code in self.again:
                raise httpx.TransportError("not now")
            assert answer.status_code == 200, answer.read()
            self.torn += 1
            cut = b""
            for piece in answer.iter_bytes():
                whole, blank, cut = (cut + piece).replace(KEEP_ALIVE, b"").rpartition(b"\n\n")
                told = whole + blank
                self.received += told
                self.countdown.count(told.count(b"\n\n"))
            if not cut:
                self.torn -= 1

    @contextmanager
    def _open(self, api: str) -> Iterator[httpx.Response]:
        if self.received:
            last = self.frames[-1].id if self.by_id else self.received.count(b"\n\n") - 1
            address = f"{api}/responses/{self.response_id}?stream=true&starting_after={last}"
            with HTTP.stream("GET", address, timeout=SILENCE_S) as answer:
                yield answer
        else:
            headers = {"idempotency-key": self.key}
            body = {**self.body, "stream": True}
            with HTTP.stream(
                "POST", f"{api}/responses", json=body, headers=headers, timeout=SILENCE_S
            ) as answer:
                yield answer


class Crowd:
    """Clients, each in a thread. Leaving the block by an error gives all of them up."""

    def __init__(self, where: Where, most: int = 512) -> None:
        self.clients: list[Attached] = []
        self._where = where
        self._pool = ThreadPoolExecutor(most)
        self._following: list[Future[None]] = []
        self._given_up = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            for client in self.clients:
                log.warning("%d attempts, last of %r", client.attempts, client.received[-100:])
            faulthandler.dump_traceback(2)
            self._given_up.set()
        self._pool.shutdown()

    def start(self, *clients: Attached) -> None:
        self.clients += clients
        self._following += [
            self._pool.submit(client.follow, self._where, self._given_up) for client in clients
        ]

    @property
    def unfinished(self) -> int:
        return sum(not future.done() for future in self._following)

    def is_over(self) -> bool:
        return self.unfinished == 0

    def finish(self, within: float = PATIENCE_S) -> None:
        """Waits until all have their ends; fails with what went wrong with any."""
        eventually(self.is_over, within=within)
        for future in self._following:
            future.result()


def ask(number: int, choose: random.Random, *, background: bool, **more: object) -> Body:
    """A request of its own: every second one greedy, the others seeded."""
    seeded = {"temperature": 1, "seed": choose.randrange(2**31)}
    sampling: Body = {"temperature": 0} if number % 2 else seeded
    words = f"Go on, {number} {choose.randrange(10**6)}."
    return {"model": MODEL, "input": words, "background": background, **sampling, **more}


def uncut(server: ServerProcess, bodies: Sequence[Body], at_once: int = 32) -> list[str]:
    """What the server says to these requests when nothing happens to it."""

    def text(body: Body) -> str:
        plain = {**body, "background": False, "stream": False}
        answer = HTTP.post(f"{server.api}/responses", json=plain)
        assert answer.status_code == 200, answer.text
        return output_text(answer.json())

    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(text, bodies))


def output_text(response: Body) -> str:
    return "".join(part["text"] for item in response["output"] for part in item.get("content") or [])


def status(server: ServerProcess, response_id: str) -> str:
    found: str = retrieve(server, response_id)["status"]
    return found


def retrieve(server: ServerProcess, response_id: str) -> Body:
    answer = HTTP.get(f"{server.api}/responses/{response_id}")
    assert answer.status_code == 200, answer.text
    found: Body = answer.json()
    return found


def check(clients: Sequence[Attached], server: ServerProcess, at_once: int = 32) -> int:
    """Each saw its whole stream once, and what is stored; each completed, or failed in the foreground.

    What was said is what would have been said without the trouble. Gives the number of tokens compared.
    """
    expected = uncut(server, [client.body for client in clients], at_once)
    return sum(check_one(client, server, text) for client, text in zip(clients, expected, strict=True))


def check_one(client: Attached, server: ServerProcess, expected: str) -> int:
    """The same of one of them, with what it would have said."""
    final = check_whole(client, server)
    said = output_text(final)
    assert said == text_of(client.frames)
    if final["status"] == "failed":
        assert not client.body["background"], final["error"]
        assert expected.startswith(said)
    else:
        assert final["status"] in ("completed", "incomplete")
        assert said == expected, (client.body, client.attempts)
    tokens: int = final["usage"]["output_tokens"]
    return tokens


def check_whole(client: Attached, server: ServerProcess) -> Body:
    """It saw every event once, as they are stored; its response as it is read afterwards."""
    assert [frame.number for frame in client.frames] == list(range(len(client.frames)))
    address = f"{server.api}/responses/{client.response_id}"
    assert HTTP.get(f"{address}?stream=true").content == client.received
    final = retrieve(server, client.response_id)
    assert final == client.final
    return final
