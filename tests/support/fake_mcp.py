"""An MCP server of a test's own, in its process: keeps what it is sent, and behaves as badly as it is told.

It speaks streamable HTTP, JSON only, and has two tools: `find`, and `add` that says it only reads.
"""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

Behaviour = Literal["good", "silent", "slow", "endless", "dense", "events", "large"]
TOOLS = [
    {"name": "find", "inputSchema": {"type": "object", "properties": {"q": {"type": "string"}}}},
    {"name": "add", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}},
]
# Made once, so that a test that times something else does not time this.
NOTIFICATIONS = b'data: {"jsonrpc":"2.0","method":"notifications/message","params":{}}\n\n' * 1000
DENSE = b"[[]]," * 500_000 + b"[]]}}"
LARGE_TOOLS = [
    {"name": f"t{index}", "description": "x" * 60_000, "inputSchema": {"type": "object"}}
    for index in range(400)
]
LARGE = json.dumps(LARGE_TOOLS)[1:].encode() + b"}}"


class FakeMcp:
    """One server; `behaviour` may change at any time."""

    def __init__(self) -> None:
        self.behaviour: Behaviour = "good"
        self.says_in_calls: Behaviour | None = None
        """How it behaves in calls alone, if otherwise."""
        self.headers: list[tuple[str, dict[str, str]]] = []
        """Of every request: its method of MCP, and its headers by their names in small letters."""
        self.has_sessions = False
        """Of the protocol's own kind; then it is asked to end them, and does not answer."""
        self.tools: list[dict[str, Any]] = TOOLS
        self.structured: dict[str, Any] | None = None
        """The structured content of its results."""
        self.text = "Found it."
        """The text of its results."""
        self.calls: list[dict[str, Any]] = []
        self.on_call: Callable[[], None] = lambda: None
        """Called when a call has arrived, before it is answered."""
        self.ended = threading.Event()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                with suppress(OSError):
                    fake.answer(self)

            def do_GET(self) -> None:
                self.send_error(405)

            def do_DELETE(self) -> None:
                fake.ended.wait(600)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        threading.Thread(target=self._server.serve_forever, args=[0.01], daemon=True).start()

    def close(self) -> None:
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()

    def sessions(self) -> list[str | None]:
        """The session header of every call, in order."""
        return [headers.get("x-session-id") for method, headers in self.headers if method == "tools/call"]

    def count(self, method: str) -> int:
        return sum(one == method for one, _ in self.headers)

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        asked = json.loads(handler.rfile.read(int(handler.headers["content-length"])))
        method = asked["method"]
        self.headers.append((method, {name.lower(): value for name, value in handler.headers.items()}))
        if "id" not in asked:
            handler.send_response(202)
            handler.send_header("content-length", "0")
            handler.end_headers()
            return
        behaviour = self.says_in_calls if method == "tools/call" and self.says_in_calls else self.behaviour
        if method == "initialize" or behaviour == "good":
            result = self._result(method, asked.get("params", {}))
            self._send(handler, asked["id"], result, is_first=method == "initialize")
        else:
            self._misbehave(handler, asked["id"], behaviour)

    def _result(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        match method:
            case "initialize":
                return {
                    "protocolVersion": params["protocolVersion"],
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "fake", "version": "1"},
                }
            case "tools/list":
                return {"tools": self.tools}
            case "tools/call":
                self.calls.append(dict(params))
                self.on_call()
                result: dict[str, Any] = {"content": [{"type": "text", "text": self.text}]}
                return result if self.structured is None else {**result, "structuredContent": self.structured}
        return {}

    def _send(
        self, handler: BaseHTTPRequestHandler, number: object, result: Mapping[str, Any], *, is_first: bool
    ) -> None:
        body = json.dumps({"jsonrpc": "2.0", "id": number, "result": result}).encode()
        handler.send_response(200)
        handler.send_header("content-type", "application/json")
        handler.send_header("content-length", str(len(body)))
        if is_first and self.has_sessions:
            handler.send_header("mcp-session-id", "one")
        handler.end_headers()
        handler.wfile.write(body)

    def _misbehave(self, handler: BaseHTTPRequestHandler, number: int, behaviour: Behaviour) -> None:
        kind = "text/event-stream" if behaviour in ("events", "endless") else "application/json"
        if behaviour != "silent":
            handler.send_response(200)
            handler.send_header("content-type", kind)
            handler.send_header("connection", "close")
            handler.end_headers()
        for piece in self._pieces(number, behaviour):
            handler.wfile.write(piece)
        handler.close_connection = True

    def _pieces(self, number: int, behaviour: Behaviour) -> Iterator[bytes]:
        match behaviour:
            case "silent":
                self.ended.wait(600)
            case "slow":
                while not self.ended.wait(0.2):
                    yield b" "
            case "endless":
                while not self.ended.is_set():
                    yield b": and so on\n\n" * 100
            case "events":
                while not self.ended.is_set():
                    yield NOTIFICATIONS
            case "dense":
                yield b'{"jsonrpc":"2.0","id":1,"result":{"tools":['
                yield DENSE
            case "large":
                yield b'{"jsonrpc":"2.0","id":%d,"result":{"tools":[' % number
                yield LARGE


@contextmanager
def running_fakes(count: int) -> Iterator[list[FakeMcp]]:
    fakes = [FakeMcp() for _ in range(count)]
    try:
        yield fakes
    finally:
        for fake in fakes:
            fake.close()
