"""WebSocket connections: messages in, queued; response streams out, as over HTTP.

What is decided is a plain function of a `SocketSession`, called in a thread. While a response runs, messages
are read all the same, so that a disconnect is noticed; the next response waits.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Generic, Literal, TypeVar

from starlette.datastructures import Headers
from starlette.routing import Match, Route
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from server.errors import UpgradeRequired
from server.http.asgi.endpoint import EndpointContext, RefuseAll, retry_until_ready
from server.http.asgi.hypercorn_patches import MESSAGE_BUFFER, MessageBuffer, ReceivedBytes
from server.http.asgi.open_connections import KeyEnded
from server.http.asgi.request_log import MessageLog
from server.http.asgi.thread_pools import ThreadPools, ThreadShare, set_store_reader
from server.http.json_responses import on_error
from server.http.websocket.session import PendingResponse, SocketSession
from server.limits.shared_limit import SharedLimit

T = TypeVar("T")
C = TypeVar("C")

GOING_AWAY = 1001
POLICY_VIOLATION = 1008
NORMAL = 1000
_DATA = b"data: "


@dataclass(frozen=True, slots=True)
class SocketEndpoint(Generic[C]):
    """An ASGI app around sessions, which `connect` makes in a thread; what it raises is a refusal.

    A connection lasts for `seconds`, or until it has nothing to do and `closing` is set.
    """

    connect: Callable[[WebSocket, C], SocketSession]
    context: EndpointContext[C]
    _: KW_ONLY
    authorize: Callable[[C], None]
    """Raises ApiError for a caller who may not open a WebSocket; called on the loop."""
    sockets: SharedLimit
    seconds: float
    closing: asyncio.Event

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        websocket = WebSocket(scope, receive, send)
        with ExitStack() as held:
            try:
                caller = await self.context.identify_caller(websocket)
                self.authorize(caller)
                share = self.context.share_of(caller)
                held.enter_context(self.sockets.hold(share.tenant))
                session = await self.context.threads.write.run(share, self.connect, websocket, caller)
            except Exception as error:  # noqa: BLE001 - whatever it is, the client gets an error object
                await websocket.send_denial_response(on_error(websocket, error))
                return
            await self._serve(websocket, session, caller, share)

    async def _serve(
        self, websocket: WebSocket, session: SocketSession, caller: C, share: ThreadShare
    ) -> None:
        received = ReceivedBytes(self.context.bodies, share.tenant)
        buffer: MessageBuffer = websocket.scope["state"][MESSAGE_BUFFER]
        buffer.received = received
        connection = _Connection(websocket, session, self.context.threads, share, received)
        try:
            async with self.context.connections.tracked(self.context.key_of(caller)):
                headers = {"x-request-id": websocket.state.request_id, **session.headers}
                await websocket.accept(
                    headers=[(name.encode(), text.encode()) for name, text in headers.items()]
                )
                await connection.serve(asyncio.get_running_loop().time() + self.seconds, self.closing)
        except KeyEnded:
            await websocket.close(POLICY_VIOLATION)
        finally:
            received.close()
            session.close()


class HandshakeWithoutUpgrade(Route):
    """The route of GET requests with a handshake's headers that a proxy has made plain HTTP: answers 426, at
    which Codex goes on over HTTP at once.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path, RefuseAll(UpgradeRequired), methods=["GET"])

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, child = super().matches(scope)
        if match is Match.FULL and not {"sec-websocket-key", "sec-websocket-version"}.isdisjoint(
            Headers(scope=scope)
        ):
            return match, child
        return Match.NONE, {}


@dataclass(eq=False, slots=True)
class _Connection:
    websocket: WebSocket
    session: SocketSession
    threads: ThreadPools
    share: ThreadShare
    received: ReceivedBytes
    _queued: deque[PendingResponse] = field(default_factory=deque)
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a response has been queued."""
    _sending: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def serve(self, until: float, closing: asyncio.Event) -> None:
        listening = asyncio.ensure_future(self._listen())
        closed = asyncio.ensure_future(closing.wait())
        try:
            code = await self._take_turns(until, listening, closed)
            if not listening.done():
                await self.websocket.close(code)
        finally:
            listening.cancel()
            closed.cancel()

    async def _listen(self) -> None:
        """Reads what the client sends; returns when it has gone."""
        while (message := await self.websocket.receive())["type"] == "websocket.receive":
            text = message.get("text")
            body = message["bytes"] if text is None else text.encode()
            del message, text
            message_log = MessageLog(self.websocket.scope)
            with message_log.current():
                try:
                    answer = await self._call(self.session.read, body, len(self._queued))
                except Exception as error:  # noqa: BLE001 - whatever it is, the client gets an error object
                    answer = self.session.explain(error)
            if isinstance(answer, bytes):
                self.received.release(len(body))
                message_log.count(answer)
                message_log.write()
                await self._send(answer)
            else:
                self._queued.append(answer)
                self._news.set()
            del body, answer

    async def _take_turns(
        self, until: float, listening: asyncio.Future[None], closed: asyncio.Future[Literal[True]]
    ) -> int:
        """One response after the other; the code to close with, unless the client has gone."""
        clock = asyncio.get_running_loop().time
        while not listening.done():
            if clock() >= until:
                await self._send(self.session.expire())
                return NORMAL
            if self._queued:
                await self._answer(self._queued.popleft(), listening)
                continue
            if closed.done():
                return GOING_AWAY
            self._news.clear()
            more = asyncio.ensure_future(self._news.wait())
            try:
                awaited: set[asyncio.Future[object]] = {listening, closed, more}  # type: ignore[arg-type]
                await asyncio.wait(awaited, timeout=until - clock(), return_when=asyncio.FIRST_COMPLETED)
            finally:
                more.cancel()
        return NORMAL

    async def _answer(self, pending: PendingResponse, listening: asyncio.Future[None]) -> None:
        message_log = MessageLog(self.websocket.scope)
        with message_log.current():
            try:
                await self._stream(pending, listening, message_log)
            finally:
                message_log.write()

    async def _stream(
        self, pending: PendingResponse, listening: asyncio.Future[None], message_log: MessageLog
    ) -> None:
        try:
            stream = await retry_until_ready(lambda: self._call(self.session.begin, pending))
        except Exception as error:  # noqa: BLE001 - whatever it is, the client gets an error object
            await self._send(message_log.count(self.session.explain(error, pending)))
            return
        finally:
            self.received.release(pending.size)
            pending.drop_content()
        relay = _EventRelay(lambda event: self._send(message_log.count(event)), pending.prefix, listening)
        scope: Scope = {"type": "http"}
        set_store_reader(scope, partial(self.threads.stream.run, self.share))
        await stream(scope, relay.receive, relay.send)
        if relay.whole:
            await self._call(self.session.end, pending, relay.last)

    async def _call(self, function: Callable[..., T], *arguments: object) -> T:
        return await self.threads.write.run(self.share, function, *arguments)

    async def _send(self, data: bytes) -> None:
        message = {"type": "websocket.send", "text": data.decode()}
        async with self._sending:
            await self.websocket.send(message)


@dataclass(eq=False, slots=True)
class _EventRelay:
    """An HTTP client for a stream of server-sent events, which sends each event on as a message."""

    send_message: Callable[[bytes], Awaitable[None]]
    prefix: bytes
    disconnected: asyncio.Future[None]
    whole: bool = False
    """The stream has been sent to its end."""
    last: bytes = b""

    async def receive(self) -> Message:
        await asyncio.wait({self.disconnected})
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] != "http.response.body":
            return
        for line in message.get("body", b"").split(b"\n"):
            if line.startswith(_DATA + b"{"):
                self.last = line.removeprefix(_DATA)
                await self.send_message(b"{" + self.prefix + self.last[1:])
        self.whole = not message.get("more_body", False)
