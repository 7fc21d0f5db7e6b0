"""The janitor thread: what has expired is purged, every so often, and changes of sums are folded.

Any number of replicas may have one.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from server.configuration.settings import Config
from server.crashpoints import crashpoint
from server.store.content import retention, storage_usage
from server.store.database import Database, DatabaseError
from server.store.disk_space import Disk, Shortage
from server.supervised_thread import Retry, SupervisedThread

log = logging.getLogger("holdfast.janitor")

FOLD_SECONDS = 10.0
"""How often changes of what tenants have stored are folded."""
SENDS = 10
"""How often a slow reader may be waited for until it asks again and learns that its response has ended.

It has a page of frames then, which is sent in fewer pieces.
"""


class DiskShort(Exception):
    """A purge writes before it frees; this disk has no room for that."""

    def __init__(self, shortage: Shortage) -> None:
        super().__init__(
            f"{shortage.free} bytes are free on the database's disk; {shortage.reserve} must be."
        )


@dataclass(frozen=True, slots=True)
class Purged:
    """What a purge took away."""

    responses: int = 0
    keys: int = 0

    def __add__(self, other: "Purged") -> "Purged":
        return Purged(self.responses + other.responses, self.keys + other.keys)


def quiet_seconds(config: Config) -> float:
    """How long a response must be over before it is purged, so that no reader of its stream is cut off.

    Whoever follows a response holds its whole stream from the first look at the store after its end on.
    """
    return SENDS * config.send_seconds


def purge(
    database: Database, disk: Disk, quiet: float, pause: Callable[[float], bool] = lambda _seconds: False
) -> Purged:
    """Purges until nothing that has expired is left. Raises DiskShort, DatabaseError.

    After every batch `pause` is given the time that it took, and ends the purge by saying True.
    """
    done = Purged()
    while True:
        if (shortage := disk.shortage()) is not None:
            raise DiskShort(shortage)
        began = time.monotonic()
        with database.begin() as connection:
            batch = retention.purge_batch(connection, quiet)
            if batch.moved:
                crashpoint("purge.written")
        if batch.moved:
            crashpoint("purge.committed")
        with database.begin() as connection:
            keys = retention.delete_old_keys(connection)
        done += Purged(batch.responses, keys)
        if not (batch.moved or keys) or pause(time.monotonic() - began):
            return done


def fold(database: Database) -> None:
    """Keeps the changes of what each tenant has stored few. Raises DatabaseError."""
    more = True
    while more:
        with database.begin() as connection:
            more = storage_usage.fold_changes(connection)


class Retention:
    """Purges every so often until `stop`."""

    def __init__(self, database: Database, disk: Disk, config: Config) -> None:
        self._database = database
        self._disk = disk
        self._every = config.purge_seconds
        self._quiet = quiet_seconds(config)
        self._purged_at = time.monotonic()
        self.thread = SupervisedThread("janitor", self._turn, retry=Retry(max_failures=None))

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        """Ends the thread after the batch that it is at."""
        self.thread.stop()

    def _turn(self) -> None:
        until_purge = self._purged_at + self._every - time.monotonic()
        if self.thread.wait(max(0.0, min(until_purge, FOLD_SECONDS))):
            return
        try:
            if until_purge <= FOLD_SECONDS:
                self._purge()
            if self._disk.shortage() is None:
                fold(self._database)
        except DatabaseError as error:
            log.warning("purge failed, trying again later: %s", type(error).__name__)

    def _purge(self) -> None:
        self._purged_at = time.monotonic()
        try:
            done = purge(self._database, self._disk, self._quiet, self.thread.wait)
        except DiskShort as short:
            log.warning("new responses are refused, and nothing is purged: %s", short)
        else:
            if done != Purged():
                log.info("purged %d responses, %d idempotency keys", done.responses, done.keys)
