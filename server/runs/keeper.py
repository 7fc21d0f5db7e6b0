"""The keeper thread: this replica's heartbeat, the burial of silent ones, the repair of what they left."""

import logging
import threading
from collections.abc import Callable

from server.store import leases
from server.store.database import Database, DatabaseError

log = logging.getLogger("holdfast.keeper")

BEAT_SECONDS = 1.0


class Keeper:
    """Beats once a second until `stop`."""

    def __init__(
        self,
        database: Database,
        beat: Callable[[], None],
        repair: Callable[[], int],
        *,
        lease_seconds: float,
        on_fenced: Callable[[], None],
        on_database_gone: Callable[[], None],
    ) -> None:
        """`beat` keeps the lease and raises leases.Fenced; `repair` ends orphans and says how many."""
        self._on_database_gone = on_database_gone
        self._database = database
        self._beat = beat
        self._repair = repair
        self._lease_seconds = lease_seconds
        self._on_fenced = on_fenced
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="keeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _loop(self) -> None:
        while not self._stopping.wait(BEAT_SECONDS):
            try:
                self._beat()
                with self._database.begin() as connection:
                    leases.bury(connection, self._lease_seconds)
                self._repair()
            except leases.Fenced:
                log.critical("this replica was declared dead: its heartbeat came too late")
                self._on_fenced()
                return
            except DatabaseError as error:
                log.warning("heartbeat failed, trying again: %s", type(error).__name__)
                self._on_database_gone()
