"""Clients of every kind that go on while a test makes trouble, each with one request at a time and its story.

A story has what its client was told. `check` holds it against what is stored when all is over.
"""

import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any
from uuid import uuid4

import httpx
from wsproto.utilities import RemoteProtocolError

from tests.support.attached import HTTP, Attached, Body, ask, output_text, retrieve, status
from tests.support.eventually import eventually
from tests.support.server_process import ServerProcess
from tests.support.sse import parse, replay, text_of
from tests.support.websocket import TERMINAL, Refused, WebSocket

PATIENCE_S = 120.0
TOOL_STORIES = 400
"""Calls of each tool, each with an argument of its own."""
DONE, UNKNOWN = "It is done.", "Nobody knows."
_PAUSE_S = 0.1
_AGAIN = frozenset({409, 503})
_KEY_TAKEN_S = 20.0
"""How long a client of an unstored chat believes that its first request may still be running."""
Kind = str
KINDS: Sequence[tuple[Kind, int]] = (
    ("stream", 4),
    ("create", 3),
    ("cancel", 2),
    ("call", 3),
    ("repeatable call", 1),
    ("websocket", 2),
    ("chat", 2),
)
"""With their weights."""


@dataclass
class Story:
    """One request, and what its client was told of it."""

    kind: Kind
    body: Body
    key: str = field(default_factory=lambda: uuid4().hex)
    response_id: str | None = None
    final: Body | None = None
    """The response as it was told at its end."""
    events: list[Any] = field(default_factory=list)
    """As JSON."""
    text: str | None = None
    """Of a chat."""
    problem: str | None = None


class RandomClients:
    """So many clients in threads, until `finish`. `servers` are asked at random."""

    def __init__(self, servers: Sequence[ServerProcess], seed: int, clients: int) -> None:
        self.stories: list[Story] = []
        self._servers = servers
        self._stopping, self._given_up = threading.Event(), threading.Event()
        self._numbers = {"call": iter(range(TOOL_STORIES)), "repeatable call": iter(range(TOOL_STORIES))}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(clients)
        self._clients = [
            self._pool.submit(self._work, random.Random(f"{seed} {number}")) for number in range(clients)
        ]

    def finish(self, within: float = PATIENCE_S) -> None:
        """No new requests; returns when all stories have their ends, or gives them up."""
        self._stopping.set()
        try:
            eventually(lambda: all(client.done() for client in self._clients), within=within)
        finally:
            self._given_up.set()
            self._pool.shutdown(wait=False)
        for client in self._clients:
            client.result()

    def _work(self, choose: random.Random) -> None:
        while not self._stopping.is_set():
            story = self._new(choose)
            with self._lock:
                self.stories.append(story)
            try:
                self._tell(story, choose)
            except Exception as error:  # noqa: BLE001 - shown with all others
                story.problem = repr(error)[:2000]

    def _new(self, choose: random.Random) -> Story:
        kind = choose.choices([kind for kind, _ in KINDS], [weight for _, weight in KINDS])[0]
        number: int | None = None
        if kind in self._numbers:
            with self._lock:
                number = next(self._numbers[kind], None)
            kind = kind if number is not None else "stream"
        background = kind in ("cancel", "call", "repeatable call") or choose.random() < 0.5
        body = ask(choose.randrange(2), choose, background=background)
        if number is not None:
            verb, name = ("Buy", "find") if kind == "call" else ("Look", "add")
            body["input"] = f"{verb} {number:04}."
            tool = {"type": "mcp", "server_label": "shop", "require_approval": "never"}
            body["tools"] = [{**tool, "allowed_tools": [name]}]
        story = Story(kind, body)
        if kind not in ("chat", "websocket"):
            body["metadata"] = {"key": story.key}
        if kind == "websocket":
            del body["background"]
        return story

    def _tell(self, story: Story, choose: random.Random) -> None:
        pick = partial(choose.choice, self._servers)
        match story.kind:
            case "stream":
                self._stream(story, pick)
            case "create":
                story.body["background"] = False
                story.final = self._post(story, pick)
            case "websocket":
                self._websocket(story, pick)
            case "chat":
                self._chat(story, pick)
            case _:
                self._in_background(story, pick, choose.uniform(0, 3) if story.kind == "cancel" else None)

    def _stream(self, story: Story, pick: Callable[[], ServerProcess]) -> None:
        client = Attached(story.body, key=story.key, by_id=True, again=_AGAIN)
        client.follow(pick, self._given_up)
        story.response_id = client.response_id
        story.events = [frame.json for frame in client.frames]
        story.final = client.final

    def _post(self, story: Story, pick: Callable[[], ServerProcess]) -> Body:
        def send() -> httpx.Response:
            headers = {"idempotency-key": story.key}
            return HTTP.post(f"{pick().api}/responses", json=story.body, headers=headers)

        body: Body = self._insist(send).json()
        story.response_id = body["id"]
        return body

    def _insist(self, send: Callable[[], httpx.Response]) -> httpx.Response:
        """The answer, once it is a 200. Fails at one that does not say to try again."""
        while not self._given_up.is_set():
            try:
                answer = send()
            except httpx.HTTPError:
                self._given_up.wait(_PAUSE_S)
                continue
            if answer.status_code == 200:
                return answer
            assert answer.status_code in _AGAIN, answer.text
            self._given_up.wait(_PAUSE_S)
        raise AssertionError("there was no answer")

    def _in_background(
        self, story: Story, pick: Callable[[], ServerProcess], cancel_after: float | None
    ) -> None:
        self._post(story, pick)
        address = f"/responses/{story.response_id}"
        if cancel_after is not None:
            self._given_up.wait(cancel_after)
            self._insist(lambda: HTTP.post(f"{pick().api}{address}/cancel"))
        while True:
            body: Body = self._insist(lambda: HTTP.get(f"{pick().api}{address}")).json()
            if body["status"] not in ("queued", "in_progress"):
                story.final = body
                return
            self._given_up.wait(_PAUSE_S)

    def _websocket(self, story: Story, pick: Callable[[], ServerProcess]) -> None:
        """One message; its client reads what it gets until the connection breaks."""
        try:
            with WebSocket(pick().url) as socket:
                socket.send({"type": "response.create", **story.body})
                while not story.events or story.events[-1]["type"] not in (*TERMINAL, "error"):
                    story.events.append(socket.receive())
        except (OSError, Refused, AssertionError, RemoteProtocolError):  # the last where an answer is cut off
            pass
        story.events = [event for event in story.events if event["type"] != "error"]
        if story.events:
            story.response_id = story.events[0]["response"]["id"]

    def _chat(self, story: Story, pick: Callable[[], ServerProcess]) -> None:
        """An unstored chat with an idempotency key: an answer, or a 409 that stays."""
        body = {**story.body, "messages": [{"role": "user", "content": story.body["input"]}]}
        for name in ("input", "background"):
            body.pop(name, None)
        refused_since: float | None = None
        while not self._given_up.is_set():
            try:
                headers = {"idempotency-key": story.key}
                answer = HTTP.post(f"{pick().api}/chat/completions", json=body, headers=headers)
            except httpx.HTTPError:
                answer = None
            if answer is not None and answer.status_code == 200:
                story.text = answer.json()["choices"][0]["message"]["content"]
                return
            if answer is not None and answer.status_code == 409:
                refused_since = refused_since or monotonic()
                if monotonic() - refused_since > _KEY_TAKEN_S:
                    return
            else:
                refused_since = None
                assert answer is None or answer.status_code == 503, answer.text
            self._given_up.wait(_PAUSE_S)


def check(story: Story, server: ServerProcess, expected: str | None) -> str:
    """Fails if its client was told what is not stored; returns the outcome.

    `expected` is the text that the engine says without trouble, None of a story with tool calls.
    """
    assert story.problem is None, story.problem
    if story.kind == "chat":
        assert story.text in (None, expected)
        return "unanswered, its key taken" if story.text is None else "answered"
    if story.response_id is None:
        return "unanswered"
    eventually(lambda: status(server, story.response_id or "") not in ("queued", "in_progress"))
    final = retrieve(server, story.response_id)
    with replay(server.url, story.response_id) as stream:
        stored = parse(stream.read())
    assert [frame.number for frame in stored] == list(range(len(stored)))
    assert stored[-1].json["response"] == final
    assert story.final in (None, final)
    assert [frame.json for frame in stored[: len(story.events)]] == story.events
    _check_text(story, final, text_of(stored), expected)
    return str(final["status"])


def _check_text(story: Story, final: Body, streamed: str, expected: str | None) -> None:
    said = output_text(final)
    assert said == streamed
    if final["status"] == "failed":
        assert not story.body.get("background"), final["error"]
        assert final["error"]["code"] == "server_error", final["error"]
    elif expected is None:
        assert final["status"] == "completed"
        assert said.endswith((DONE, UNKNOWN)), said
    if expected is not None:
        assert said == expected if final["status"] == "completed" else expected.startswith(said)
