"""The thread that settles with the database what requests and responses have left of limits, each second.

A row that another transaction holds delays it, and so no heartbeat and no request.
"""

import logging
from collections.abc import Callable

from server.store.database_errors import DatabaseError
from server.supervised_thread import Retry, SupervisedThread

log = logging.getLogger("holdfast.settlement")

SETTLE_SECONDS = 1.0


class Settlement:
    """Calls its writers, which keep what they cannot write for the next turn."""

    def __init__(self, *writers: Callable[[], None]) -> None:
        self._writers = writers
        self.thread = SupervisedThread("settlement", self._turn, retry=Retry(max_failures=None))

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        """Ends the thread after all was written once more."""
        self.thread.stop()
        self._settle()

    def _turn(self) -> None:
        if not self.thread.wait(SETTLE_SECONDS):
            self._settle()

    def _settle(self) -> None:
        for write in self._writers:
            try:
                write()
            except DatabaseError as error:
                log.warning("settled later: %s", type(error).__name__)
