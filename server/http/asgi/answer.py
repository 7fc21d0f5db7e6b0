"""Answers of handlers: their type, their time limits, and waiting for events or a disconnect."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from starlette.types import Receive, Scope, Send


class Answer(Protocol):
    """An ASGI app that sends one response: a Starlette response, an EventStream or a FinalResponse."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


@dataclass(frozen=True, slots=True)
class Timing:
    """Time limits in seconds."""

    keep_alive: float
    """Silence after which a stream sends a comment."""
    send: float
    """Time that a client has to take one message."""


async def wait_for(waker: asyncio.Event, seconds: float | None) -> None:
    """Waits until the event is set or the time is over. Creates no task: this runs once for every event."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await waker.wait()


def watch_disconnect(receive: Receive, waker: asyncio.Event) -> asyncio.Future[None]:
    """A future that is done when the client has disconnected, which also sets the waker."""
    disconnected = asyncio.ensure_future(_receive_disconnect(receive))
    disconnected.add_done_callback(lambda _: waker.set())
    return disconnected


async def _receive_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
