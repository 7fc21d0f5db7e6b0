"""A connection, while a response of it streams."""

import asyncio
from types import SimpleNamespace
from typing import Any

from starlette.types import Receive, Scope, Send

from server.http.asgi.request_log import MessageLog
from server.http.asgi.thread_pools import ThreadShare
from server.http.websocket.connection import _Connection
from server.http.websocket.session import PendingResponse
from server.logs.context import RequestContext
from server.protocol.responses.request import CreateMessage


class Pool:
    """Calls functions at once."""

    async def run(self, _share: ThreadShare, function: Any, *arguments: object) -> Any:
        return function(*arguments)

    def bind(self, _share: ThreadShare) -> Any:
        return self.run


async def streamed(wanted: PendingResponse) -> list[object]:
    """What the message still said while its response streamed, and after it."""
    said: list[object] = []

    async def stream(_scope: Scope, _receive: Receive, send: Send) -> None:
        said.append(wanted.message.input)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    session: Any = SimpleNamespace(
        begin=lambda _wanted: stream, end=lambda _wanted, _last: said.append(wanted.message.input)
    )
    threads: Any = SimpleNamespace(write=Pool(), stream=Pool())
    received: Any = SimpleNamespace(release=lambda _size: None)
    state = {"request_context": RequestContext("req_1")}
    websocket: Any = SimpleNamespace(scope={"type": "websocket", "path": "/", "headers": [], "state": state})
    connection = _Connection(websocket, session, threads, ThreadShare("a"), received)
    await connection._stream(wanted, asyncio.Future(), MessageLog(websocket.scope))
    return said


def test_a_message_is_forgotten_once_its_response_has_begun() -> None:
    message = CreateMessage(
        model="m", input="long", instructions="longer", stream_id="s", previous_response_id="r"
    )
    wanted = PendingResponse(message, 4, b"")
    assert asyncio.run(streamed(wanted)) == [None, None]
    assert wanted.message.instructions is None
    assert (wanted.message.stream_id, wanted.message.previous_response_id) == ("s", "r")
