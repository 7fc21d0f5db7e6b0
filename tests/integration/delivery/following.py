"""A follower with readers of its own, as on a replica that runs nothing."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg
from starlette.responses import Response

from server.delivery.follower import Follower
from server.delivery.hub import TAIL_FRAMES, Channel, Hub
from server.delivery.stored_responses import StreamReader
from server.http.asgi.answers import EventStream, FinalResponse, StreamPosition
from server.store.database import Database
from tests.support.builders import TENANT
from tests.support.sse import parse, text_of
from tests.unit.server.http.asgi.asgi_messages import Client

KEEP_ALIVE_S = 3600.0


@dataclass
class Elsewhere:
    """What the other replica has: a loop, a hub, a follower."""

    database: Database
    loop: asyncio.AbstractEventLoop
    hub: Hub
    follower: Follower
    here: set[UUID]

    def stream(self, response: UUID, position: int = 0) -> "Reading":
        """A reader that has joined."""
        channel = self.hub.watch(TENANT, response)
        client = Client()
        reader = StreamReader(self.database, TENANT, response)
        stream = EventStream(
            StreamPosition(channel, reader.read, position), keep_alive=KEEP_ALIVE_S, headers={}
        )
        return Reading(client, channel, self._ask(client, stream))

    def final(self, response: UUID) -> "Future[bytes]":
        """What a client is answered that waits for the end."""
        deferred = FinalResponse(self.hub.watch(TENANT, response), fallback=_nothing, headers={})
        return self._ask(Client(), deferred)

    def _ask(self, client: Client, answer: EventStream | FinalResponse) -> "Future[bytes]":
        async def exchange() -> bytes:
            await client.ask(answer)
            return client.body

        return asyncio.run_coroutine_threadsafe(exchange(), self.loop)


def _nothing() -> Response:
    raise AssertionError("nobody asks for the response as it stands")


@dataclass
class Reading:
    client: Client
    channel: Channel
    whole: "Future[bytes]"
    """Everything, once the stream has ended."""

    @property
    def text(self) -> str:
        """The answer as far as it was read."""
        return text_of(parse(self.client.body))


@contextmanager
def elsewhere(url: str, tail_frames: int = TAIL_FRAMES, **pauses: Any) -> Iterator[Elsewhere]:
    """Another replica; `pauses` are those of its follower."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    database = Database(url, pool_size=4)
    hub = Hub(loop, tail_frames)
    here: set[UUID] = set()
    follower = Follower(database, hub, here.__contains__, lambda: None, **pauses)
    thread.start()
    follower.start()
    try:
        yield Elsewhere(database, loop, hub, follower, here)
    finally:
        follower.stop()
        asyncio.run_coroutine_threadsafe(_end_all(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        database.close()


async def _end_all() -> None:
    """Streams that a test has left open; their threads would outlive it."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


def sessions(url: str, name: str, *, ended: bool = False) -> int:
    """How many connections of that name there are; with `ended`, they are killed from outside."""
    act = "pg_terminate_backend(pid, 5000)" if ended else "pid"
    with psycopg.connect(url, autocommit=True) as connection:
        rows = connection.execute(
            f"select {act} from pg_stat_activity"  # noqa: S608
            " where application_name = %s and datname = current_database()",
            (f"holdfast {name}",),
        ).fetchall()
    return len(rows)
