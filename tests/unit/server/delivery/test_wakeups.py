"""What is committed while a reader comes reaches that reader, although nothing follows it for long."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import pytest
from starlette.requests import Request

from server.admission import admit
from server.admission.accept import AcceptedResponse, AcceptedRun
from server.admission.admit import Admission
from server.caller import Caller
from server.delivery.frames import FramePage
from server.delivery.hub import Hub, Published
from server.http.asgi import answers
from server.http.asgi.answers import KEEP_ALIVE_LINE, Answer
from server.http.handler_services import ApiCall
from server.http.handlers import responses
from server.protocol.ids import response_id
from server.store.database_errors import DatabaseError
from tests.support.builders import make_facts
from tests.unit.server.http.asgi.asgi_messages import PATIENCE_S, Client, inline_to_thread, now, run
from tests.unit.server.http.asgi.test_answers import Stream, deferred

FRAMES = [b"event: e%d\ndata: {}\n\n" % n for n in range(6)]
TENANT = "default"


@pytest.fixture(autouse=True)
def on_the_virtual_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "store_reader", lambda _scope: inline_to_thread)


def publish(hub: Hub, loop: asyncio.AbstractEventLoop, published: Published) -> None:
    """From another thread than the loop's; returns when it has reached the channels that there are."""
    delivered = threading.Event()
    hub.publish([published])
    loop.call_soon_threadsafe(delivered.set)
    assert delivered.wait(PATIENCE_S)


class Store:
    """A running response's frames, and readers of it."""

    def __init__(self, hub: Hub, response: UUID, frames: list[bytes]) -> None:
        self.hub, self.response, self.frames = hub, response, list(frames)
        self.loop = asyncio.get_running_loop()
        self.reads = 0
        self.commit_after_read: list[bytes] = []

    def commit(self, *frames: bytes) -> None:
        published = Published(self.response, len(self.frames), frames, None)
        self.frames += frames
        publish(self.hub, self.loop, published)

    def resume(self, _after: object, _param: str) -> FramePage:
        return self.read(0, None)

    def read(self, first: int, _last: bytes | None = None) -> FramePage:
        found = self.frames[first:]
        self.reads += 1
        if self.commit_after_read:
            self.commit(self.commit_after_read.pop(0))
        return FramePage(found, ended=False)


def retrieve(store: Store, monkeypatch: pytest.MonkeyPatch) -> Answer:
    """A stream of the response from its beginning, as a GET asks for it."""
    reader = SimpleNamespace(
        resume=store.resume,
        read=store.read,
        ended=False,
        background=True,
        tenant=TENANT,
        response=store.response,
    )
    monkeypatch.setattr(responses, "StreamReader", lambda *_: reader)
    config = SimpleNamespace(keep_alive_seconds=1000.0, send_seconds=30.0, event_names="openai")
    services = SimpleNamespace(hub=store.hub, config=config, database=None)
    name = response_id(store.response)
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/",
        "headers": [],
        "query_string": b"stream=true",
        "path_params": {"response_id": name},
        "state": {"request_id": "req_1"},
    }
    request = Request(scope)
    return cast("Answer", responses.retrieve(ApiCall(cast("Any", services), Caller(TENANT, None), request)))


@pytest.mark.parametrize("commits", [1, 2])
def test_frame_that_is_committed_between_reading_and_watching_is_sent(
    monkeypatch: pytest.MonkeyPatch, commits: int
) -> None:
    async def main() -> bytes:
        store = Store(Hub(asyncio.get_running_loop()), uuid4(), FRAMES[:2])
        store.commit_after_read = FRAMES[2 : 2 + commits]
        client = Client()
        task = client.ask(await asyncio.to_thread(retrieve, store, monkeypatch))
        await asyncio.sleep(100)
        client.leave()
        await task
        return client.body.replace(KEEP_ALIVE_LINE, b"")

    assert run(main) == b"".join(FRAMES[: 2 + commits])


def test_reader_of_a_response_at_rest_asks_the_store_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> tuple[bytes, int]:
        store = Store(Hub(asyncio.get_running_loop()), uuid4(), FRAMES[:2])
        client = Client()
        task = client.ask(await asyncio.to_thread(retrieve, store, monkeypatch))
        await asyncio.sleep(100)
        await asyncio.to_thread(store.commit, *FRAMES[2:4])
        await asyncio.sleep(100)
        client.leave()
        await task
        return client.body.replace(KEEP_ALIVE_LINE, b""), store.reads

    assert run(main) == (b"".join(FRAMES[:4]), 2)


def test_frames_of_who_claims_a_new_response_at_once_are_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> list[bytes] | None:
        loop = asyncio.get_running_loop()
        hub, response = Hub(loop), uuid4()
        claimed = Published(response, 2, (FRAMES[2],), None)
        accepted = [AcceptedRun(make_facts(id=response, attempt=0), ["created", "queued"])]  # type: ignore[list-item]
        monkeypatch.setattr(admit, "frames", lambda _id, _events, _attempt: tuple(FRAMES[:2]))
        admission = object.__new__(Admission)
        vars(admission).update(_hub=hub, _on_queued=lambda: None, _on_accepted=lambda _count: None)
        prepared = SimpleNamespace(echo=SimpleNamespace(background=True))
        new = cast("Any", SimpleNamespace(caller=Caller(TENANT, None), response=response, prepared=prepared))

        def accept() -> list[AcceptedResponse]:
            with admission._reserved([new]) as channels:
                publish(hub, loop, claimed)  # another thread claims it as soon as it is committed
            return admission._begin([new], accepted, channels)

        (admitted,) = await asyncio.to_thread(accept)
        await asyncio.sleep(1)
        return admitted.channel.after(2)

    assert run(main) == [FRAMES[2]]


@pytest.mark.parametrize("found", [[b'{"id":1}'], []])
def test_a_deferred_answer_comes_though_nobody_tells_of_the_end(found: list[bytes]) -> None:
    async def main() -> tuple[Client, float, int]:
        looks = 0

        def look() -> list[bytes] | None:
            nonlocal looks
            looks += 1
            if looks == 1:
                raise DatabaseError
            return found if looks == 3 else None

        stream = Stream()
        client = Client()
        await client.ask(deferred(stream, read_stored=look))
        return client, now(), looks

    client, at, looks = run(main)
    assert (client.body, at, looks) == (found[0] if found else b"as it stands", 6, 3)


def test_a_deferred_answer_asks_the_store_in_silence_only() -> None:
    async def main() -> int:
        looks = 0

        def look() -> None:
            nonlocal looks
            looks += 1

        stream = Stream()
        client = Client()
        task = client.ask(deferred(stream, read_stored=look))
        for frame in FRAMES[:9]:
            await asyncio.sleep(1)
            stream.add(frame)
        stream.add(end=True)
        await task
        return looks

    assert run(main) == 0
