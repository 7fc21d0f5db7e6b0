"""`python -m tests.support.recorded_server serve …`: a server that writes down every body that it sends.

What the whole run of the tests receives is checked from that, whichever client it was sent to. Each line is
JSON, written before the bytes are handed on to the client, to the file descriptor that `DESCRIPTOR` names.
"""

import itertools
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

DESCRIPTOR = "RECORDED_BODIES"
BODY_WRITER = "body_writer"
"""As in `server.http.asgi.body_writer`, which this file must not import before `main` is ready to."""
_numbers = itertools.count()


class Recording:
    """An ASGI application around another one."""

    def __init__(self, application: Any, descriptor: int) -> None:
        self._application = application
        self._descriptor = descriptor

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._application(scope, receive, send)
            return
        name = f"{os.getpid()}.{next(_numbers)}"
        method = scope.get("method", "WEBSOCKET")

        async def record(message: Any) -> None:
            self._write(name, method, scope["path"], message)
            await send(message)

        if (writer := scope.get("state", {}).get(BODY_WRITER)) is not None:
            scope["state"][BODY_WRITER] = RecordingWriter(
                writer, lambda part: self._write(name, method, scope["path"], body_part(part))
            )
        await self._application(scope, receive, record)

    def _write(self, name: str, method: str, path: str, message: Any) -> None:
        match message["type"]:
            case "http.response.start":
                headers = dict(message.get("headers", ()))
                kind = headers.get(b"content-type", b"").decode("latin-1")
                line = [name, "start", method, path, message["status"], kind]
            case "http.response.body":
                line = [name, "body", message.get("body", b"").decode("latin-1"), message.get("more_body")]
            case "websocket.send":
                line = [name, "message", message.get("text") or message.get("bytes", b"").decode()]
            case _:
                return
        with suppress(OSError):  # a full disk is what some tests make
            os.write(self._descriptor, json.dumps(line).encode() + b"\n")


class RecordingWriter:
    """A `BodyWriter` around another one."""

    def __init__(self, writer: Any, record: Callable[[bytes], None]) -> None:
        self._writer = writer
        self._record = record

    @property
    def is_ready(self) -> bool:
        return bool(self._writer.is_ready)

    def write(self, part: bytes) -> None:
        self._record(part)
        self._writer.write(part)


def body_part(part: bytes) -> dict[str, Any]:
    return {"type": "http.response.body", "body": part, "more_body": True}


def recorded(build: Callable[..., Any], descriptor: int) -> Callable[..., Any]:
    """Makes what `build` makes, recorded."""
    return lambda *arguments: Recording(build(*arguments), descriptor)


def main() -> int:
    from server.process import interrupts

    interrupts.exit_on_interrupt()
    from server.__main__ import main as run
    from server.http import app

    app.build = recorded(
        app.build, int(os.environ[DESCRIPTOR])
    )  # which `server.process.serve` imports from there
    return run()


if __name__ == "__main__":
    sys.exit(main())
