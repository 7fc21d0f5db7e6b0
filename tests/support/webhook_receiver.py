"""A receiver of webhooks on this machine: keeps what arrives, and answers as the test says.

What arrives is verified by the official client, so a signature that is wrong fails the test.
"""

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple

from openai import OpenAI


class Reply(NamedTuple):
    """An answer; its pieces are sent one after the other."""

    status: int = 200
    headers: Mapping[str, str] = {}
    pieces: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Arrival:
    """A request that arrived."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def message_id(self) -> str:
        return self.headers["webhook-id"]


@dataclass
class Arrivals:
    """What arrived, and what was answered with 2xx."""

    all: list[Arrival] = field(default_factory=list)
    received: Counter[str] = field(default_factory=Counter)
    """Of each response, by its id, the receipts."""
    types: dict[str, str] = field(default_factory=dict)
    """The event type of each response."""
    problems: list[str] = field(default_factory=list)
    """What went wrong in the receiver."""


class WebhookReceiver:
    """Listens while its block runs. `decide` says how an arrival is answered; it may block."""

    def __init__(
        self,
        decide: Callable[[Arrival], Reply] = lambda _arrival: Reply(),
        port: int = 0,
        arrivals: Arrivals | None = None,
    ) -> None:
        self.decide = decide
        self.arrivals = Arrivals() if arrivals is None else arrivals
        self.secret: str | None = None
        """The secret by which arrivals are verified."""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                size = int(self.headers["content-length"])
                body = self.rfile.read(size)
                if len(body) == size:  # else the sender died while it was sending
                    receiver.arrived(self, Arrival(self.path, dict(self.headers.items()), body))

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=[0.05], daemon=True)
        self._lock = threading.Lock()
        self._client = OpenAI(api_key="none")

    @property
    def port(self) -> int:
        return self._server.server_port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    def arrived(self, handler: BaseHTTPRequestHandler, arrival: Arrival) -> None:
        with self._lock:
            self.arrivals.all.append(arrival)
        try:
            event = self.unwrap(arrival)
            reply = self.decide(arrival)
            handler.send_response(reply.status)
            for name, value in reply.headers.items():
                handler.send_header(name, value)
            handler.end_headers()
            for piece in reply.pieces:
                handler.wfile.write(piece)
        except OSError:
            return
        except Exception as error:  # noqa: BLE001 - the test's thread shows it
            with self._lock:
                self.arrivals.problems.append(repr(error))
            return
        if 200 <= reply.status < 300 and event is not None:
            with self._lock:
                self.arrivals.received[event.data.id] += 1
                self.arrivals.types[event.data.id] = event.type

    def unwrap(self, arrival: Arrival) -> Any:
        """The event, verified; None while the secret is not known."""
        if self.secret is None:
            return None
        return self._client.webhooks.unwrap(arrival.body, arrival.headers, secret=self.secret)

    def __enter__(self) -> "WebhookReceiver":
        self._thread.start()
        return self

    def close(self) -> None:
        """Stops listening, so that connections are refused."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._client.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread.is_alive():
            self.close()
