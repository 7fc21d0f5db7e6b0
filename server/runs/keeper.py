"""The keeper thread: this replica's heartbeat, the burial of silent ones, and a look at what it owns.

What it owns in the database and does not produce was lost on the way (a commit whose answer never came), so
it is handed back; what somebody asked to end elsewhere is cancelled.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from uuid import UUID

from server.crashpoints import crashpoint
from server.runs.unread import Unread
from server.store import leases, ownership
from server.store.database import Database, DatabaseError

log = logging.getLogger("holdfast.keeper")

BEAT_SECONDS = 1.0


class Keeper:
    """Beats once a second until `stop`."""

    def __init__(
        self,
        database: Database,
        replica: UUID,
        *,
        holds: Callable[[UUID], bool],
        cancel: Callable[[UUID], None],
        lease_seconds: float,
        reading: Callable[[], Sequence[UUID]],
        unread: Unread,
        on_unowned: Callable[[], None],
        on_fenced: Callable[[], None],
        on_others: Callable[[bool], None],
        on_database_gone: Callable[[], None],
    ) -> None:
        """`holds` tells whether a response is being produced here; `cancel` ends one that is.

        `reading` gives the responses that run elsewhere and go on only while they are read here.
        `on_others` is told with every beat whether other replicas are alive.
        """
        self._database = database
        self._replica = replica
        self._holds = holds
        self._cancel = cancel
        self._lease_seconds = lease_seconds
        self._reading = reading
        self._unread = unread
        self._on_unowned = on_unowned
        self._on_fenced = on_fenced
        self._on_others = on_others
        self._on_database_gone = on_database_gone
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
                self.beat()
            except leases.Fenced:
                log.critical("this replica was declared dead: its heartbeat came too late")
                self._on_fenced()
                return
            except DatabaseError as error:
                log.warning("heartbeat failed, trying again: %s", type(error).__name__)
                self._on_database_gone()

    def beat(self) -> None:
        """One round. Raises leases.Fenced when this replica was declared dead, or DatabaseError."""
        with self._database.begin() as connection:
            leases.beat(connection, self._replica, self._reading())
            others_alive = leases.others_alive(connection, self._replica)
            read = leases.read_elsewhere(connection, self._replica, self._unread.waiting())
        self._on_others(others_alive)
        self._unread.settle(read, alone=not others_alive)
        with self._database.begin() as connection:
            unowned = leases.bury(connection, self._lease_seconds)
            if unowned:
                crashpoint("bury.written")
        if unowned:
            crashpoint("bury.committed")
        with self._database.begin() as connection:
            lost = [
                place for place in ownership.owned(connection, self._replica) if not self._holds(place.id)
            ]
            if lost:
                log.warning("%d responses of this replica are not produced by it; handed back", len(lost))
                ownership.hand_back(connection, self._replica, lost)
            for response in ownership.unwanted(connection, self._replica):
                self._cancel(response)
        if unowned or lost:
            self._on_unowned()
