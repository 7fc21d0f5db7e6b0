"""`await_database`: a server waits for its database, or for its schema's upgrade, live but not ready."""

import asyncio
import logging
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from server.configuration.settings import Config
from server.errors import ApiError, DatabaseAwaited, DatabaseAway, SchemaBehind
from server.http.app import build_waiting
from server.http.asgi.hypercorn_patches import install_patches
from server.http.asgi.listener import Listener, hypercorn_settings
from server.http.asgi.tls import ServerCertificate
from server.process.open_database import OpenDatabase
from server.supervised_thread import Retry, SupervisedThread

log = logging.getLogger("holdfast.serve")

POLL_SECONDS = 1.0
"""Time between two looks at the database."""
LOG_SECONDS = 60.0


def find_awaited(opened: OpenDatabase) -> ApiError | None:
    """Return the reason to wait for this database; None if it can serve. Raises ConfigError."""
    try:
        return None if opened.can_serve() else SchemaBehind()
    except DatabaseAway as error:
        if opened.is_embedded:
            raise
        log.info("%s", error)
        return DatabaseAwaited()


def await_database(
    config: Config,
    opened: OpenDatabase,
    listener: socket.socket,
    runner: asyncio.Runner,
    certificate: ServerCertificate | None,
    connections: int,
    awaited: ApiError,
) -> bool:
    """Serves health until this release can serve on the database; False after SIGTERM or SIGINT.

    At most `connections` are open at a time. Raises ConfigError for what no waiting helps against, such as a
    schema that a newer release has made for itself alone.
    """
    install_patches()
    settings = hypercorn_settings(config)
    settings.keep_alive_max_requests = 0  # no connection outlives its answer, so that the end waits for none
    wait = _Wait(opened, runner.get_loop(), awaited)
    app = build_waiting(lambda: wait.reason)
    server = Listener(app, settings, connections, certificate, send_seconds=config.send_seconds)
    with _stopping_at_signals(wait):
        wait.thread.start()
        runner.run(server.serve(listener.dup(), wait.ended.wait))
    wait.thread.stop()
    if wait.error is not None:
        raise wait.error
    return wait.is_ready


class _Wait:
    """The thread that looks at the database, and how it ended."""

    def __init__(self, opened: OpenDatabase, loop: asyncio.AbstractEventLoop, awaited: ApiError) -> None:
        self._opened, self.loop = opened, loop
        self._logged, self._logged_at = "", 0.0
        self.thread = SupervisedThread("await database", self._turn, retry=Retry(max_failures=None))
        self.ended = asyncio.Event()
        """Set when there is nothing to wait for any more. Of the loop."""
        self.is_ready = False
        self.reason = awaited
        """The reason of the wait, as the error of every request."""
        self.error: Exception | None = None

    def stop(self) -> None:
        """Called on the loop."""
        self.thread.request_stop()
        self.ended.set()

    def _turn(self) -> None:
        if str(self.reason) != self._logged or monotonic() - self._logged_at >= LOG_SECONDS:
            self._logged, self._logged_at = str(self.reason), monotonic()
            log.warning("%s", self._logged)
        if self._look():
            self.thread.request_stop()
            self.loop.call_soon_threadsafe(self.ended.set)
        else:
            self.thread.wait(POLL_SECONDS)

    def _look(self) -> bool:
        """Whether the wait is over."""
        try:
            awaited = find_awaited(self._opened)
        except Exception as error:  # noqa: BLE001 - the main thread raises it
            self.error = error
            return True
        self.is_ready = awaited is None
        self.reason = awaited or self.reason
        return self.is_ready


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
