"""ASGI without a server: a client of lists and events, on a loop whose clock jumps instead of waiting."""

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, TypeVar

T = TypeVar("T")
PATIENCE_S = 60.0


class _Impatient(selectors.DefaultSelector):
    """Passes the time that the loop would wait, unless something is there already."""

    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            ready = super().select(PATIENCE_S)
            assert ready, "everything waits and nothing will ever happen"
            return ready
        self.loop.passed += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.passed = 0.0
        selector = _Impatient()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.passed


def run(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Runs on a virtual clock that starts at 0."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


def now() -> float:
    return asyncio.get_running_loop().time()


async def inline(_threads: object, function: Callable[..., T], *arguments: Any) -> T:
    """Stands for `run_in_thread`: a thread would not run on the virtual clock."""
    return await inline_to_thread(function, *arguments)


async def inline_to_thread(function: Callable[..., T], *arguments: Any) -> T:
    """The same for `asyncio.to_thread`."""
    return function(*arguments)


class Writer:
    """A `BodyWriter` to one client, which may take no more."""

    def __init__(self, client: "Client") -> None:
        self.is_ready = True
        self.written: list[bytes] = []
        self._client = client

    def write(self, part: bytes) -> None:
        assert self.is_ready
        assert part
        self.written.append(part)
        self._client.take({"type": "http.response.body", "body": part, "more_body": True})


class Client:
    """One exchange. It reads all it is sent until told to stall, and stays until told to leave."""

    def __init__(self, *body: bytes, headers: dict[str, str] | None = None) -> None:
        self.sent: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.stalled = False
        self.received = 0
        self.received_before_answer = 0
        """Pieces of the body that were taken before the answer began."""
        self._body = list(body)
        self._gone = asyncio.Event()
        self._news = asyncio.Event()
        self.scope: dict[str, Any] = {
            "type": "http",
            "method": "POST",
            "path": "/",
            "query_string": b"",
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in (headers or {}).items()],
        }

    async def receive(self) -> MutableMapping[str, Any]:
        if self.received < len(self._body):
            piece = self._body[self.received]
            self.received += 1
            more = self.received < len(self._body)
            return {"type": "http.request", "body": piece, "more_body": more}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if self.stalled:
            await asyncio.Event().wait()
        if not self.sent:
            self.received_before_answer = self.received
        self.take(message)

    def take(self, message: MutableMapping[str, Any]) -> None:
        self.sent.append(dict(message))
        self.times.append(now())
        self._news.set()

    def leave(self) -> None:
        self._gone.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._news.clear()
            await self._news.wait()

    def ask(self, app: Callable[..., Awaitable[None]]) -> "asyncio.Task[None]":
        """Begins the exchange."""

        async def exchange() -> None:
            await app(self.scope, self.receive, self.send)

        return asyncio.ensure_future(exchange())

    @property
    def status(self) -> int:
        status: int = self.sent[0]["status"]
        return status

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def pieces(self) -> list[bytes]:
        """The bodies of the messages, empty ones left out."""
        return [message["body"] for message in self.sent[1:] if message["body"]]

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    @property
    def ended(self) -> bool:
        """The answer was ended in good order."""
        return len(self.sent) > 1 and not self.sent[-1].get("more_body", False)
