"""Threads that settle with the database, every so many seconds, what requests and responses have left behind.

A row that another transaction holds delays it, and so no heartbeat and no request.
"""

import logging
from collections.abc import Callable

from server.store.database_errors import DatabaseError
from server.supervised_thread import Retry, SupervisedThread, Worker

log = logging.getLogger("holdfast.settlement")

SETTLE_SECONDS = 1.0


class Settlement(Worker):
    """Calls its writers, which keep what they cannot write for the next turn."""

    def __init__(self, name: str, seconds: float, *writers: Callable[[], None]) -> None:
        self._seconds = seconds
        self._writers = writers
        self.thread = SupervisedThread(name, self._turn, retry=Retry(max_failures=None))

    def stop(self) -> None:
        """Ends the thread after all was written once more."""
        super().stop()
        self._settle()

    def _turn(self) -> None:
        if not self.thread.wait(self._seconds):
            self._settle()

    def _settle(self) -> None:
        for write in self._writers:
            try:
                write()
            except DatabaseError as error:
                log.warning("settled later: %s", type(error).__name__)
