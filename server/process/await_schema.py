"""`await_schema`: a server whose database has an older schema waits for the upgrade, live but not ready."""

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from server.configuration.settings import Config
from server.errors import SchemaBehind
from server.http.asgi.hypercorn_patches import install_patches
from server.http.asgi.listener import Listener, hypercorn_settings
from server.http.asgi.tls import ServerCertificate
from server.http.waiting_app import build_waiting
from server.process.open_database import DatabaseAway, OpenDatabase

log = logging.getLogger("holdfast.serve")

POLL_SECONDS = 1.0
"""Between two looks at the schema."""
LOG_SECONDS = 60.0


def await_schema(
    config: Config,
    opened: OpenDatabase,
    listener: socket.socket,
    runner: asyncio.Runner,
    certificate: ServerCertificate | None,
    connections: int,
) -> bool:
    """Serves health until this release can serve on the schema; False after SIGTERM or SIGINT.

    At most `connections` are open at a time. Raises ConfigError if a newer release has made the schema for
    itself alone. A database that does not answer meanwhile is waited for, too.
    """
    install_patches()
    settings = hypercorn_settings(config)
    settings.keep_alive_max_requests = 0  # no connection outlives its answer, so that the end waits for none
    server = Listener(build_waiting(), settings, connections, certificate)
    wait = _Wait(opened, runner.get_loop())
    with _stopping_at_signals(wait):
        wait.start()
        runner.run(server.serve(listener.dup(), wait.ended.wait))
    wait.join()
    if wait.error is not None:
        raise wait.error
    return wait.is_ready


class _Wait:
    """The thread that looks at the schema, and how it ended."""

    def __init__(self, opened: OpenDatabase, loop: asyncio.AbstractEventLoop) -> None:
        self._opened, self.loop = opened, loop
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="await schema", daemon=True)
        self.ended = asyncio.Event()
        """Set when there is nothing to wait for any more. Of the loop."""
        self.is_ready = False
        self.error: Exception | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Called on the loop."""
        self._stopped.set()
        self.ended.set()

    def join(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        logged_at = -LOG_SECONDS
        while not self._stopped.is_set():
            if monotonic() - logged_at >= LOG_SECONDS:
                logged_at = monotonic()
                log.warning("%s", SchemaBehind())
            if self._look():
                self.loop.call_soon_threadsafe(self.ended.set)
                return
            self._stopped.wait(POLL_SECONDS)

    def _look(self) -> bool:
        """Whether the wait is over."""
        try:
            self.is_ready = self._opened.is_ready()
        except DatabaseAway as error:
            log.info("%s", error)
        except Exception as error:  # noqa: BLE001 - the main thread raises it
            self.error = error
        return self.is_ready or self.error is not None


@contextmanager
def _stopping_at_signals(wait: _Wait) -> Iterator[None]:
    """In the block SIGTERM and SIGINT end the wait; after it they do what they did before."""
    loop, numbers = wait.loop, (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        loop.add_signal_handler(number, wait.stop)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
            signal.signal(number, before[number])
