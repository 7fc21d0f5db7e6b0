"""`EndedKeyWatch`: ends what runs with a key that expires or is revoked, where the key says so.

It cancels the key's responses and a turn later, after their last events, closes its streams and WebSockets.
"""

import logging
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from uuid import UUID

from server.http.asgi.open_connections import OpenConnections
from server.recording.recorder import Recorder
from server.store.administration import stored_keys
from server.store.cluster import claims
from server.store.database import Database
from server.store.database_errors import DatabaseError
from server.supervised_thread import Retry, SupervisedThread, Worker

log = logging.getLogger("holdfast.keys")

_POLL_SECONDS = 0.4
_IDLE_SECONDS = 4.0
"""Time between two queries while nothing runs here with a key."""
_REMEMBERED = timedelta(minutes=10)
"""Time for which an ended key that is not in use is looked for, longer than a common outage."""


class EndedKeyWatch(Worker):
    """Asks the database for keys that have ended."""

    def __init__(
        self,
        database: Database,
        recorder: Recorder,
        connections: OpenConnections,
        cancel: Callable[[UUID], None],
    ) -> None:
        """`cancel` ends a response that runs here."""
        self._database = database
        self._recorder = recorder
        self._connections = connections
        self._cancel = cancel
        self._known: frozenset[str] = frozenset()
        self._waited = 0.0
        self.thread = SupervisedThread("ended keys", self._turn, retry=Retry(max_failures=None))

    def _turn(self) -> None:
        if self.thread.wait(_POLL_SECONDS):
            return
        self._waited += _POLL_SECONDS
        if self._waited < _IDLE_SECONDS and not self._keys_in_use():
            return
        self._waited = 0.0
        try:
            self.check()
        except DatabaseError as error:
            log.debug("ended keys are looked for later: %s", type(error).__name__)

    def _keys_in_use(self) -> set[str]:
        """Return the keys with which something is open or runs here."""
        running = {run.facts.key_id for run in self._recorder.active_runs()}
        return {*self._connections.keys, *(key for key in running if key is not None)}

    def check(self) -> None:
        """One look. Raises DatabaseError."""
        look = partial(stored_keys.ended_keys, age=_REMEMBERED, in_use=self._keys_in_use())
        ended = frozenset(self._database.autocommit(look))
        for key in ended - self._known:
            count = self._database.retry(partial(claims.request_cancel_of_key, key_id=key))
            log.info("key %s has ended, and %d of its responses with it", key, count)
        for run in self._recorder.active_runs():
            if run.facts.key_id in ended:
                self._cancel(run.facts.id)
        self._connections.end(ended & self._known)
        self._known = ended
