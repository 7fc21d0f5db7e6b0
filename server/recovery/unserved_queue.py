"""Warns of background responses that stay queued because no living replica generates for their model."""

import logging
from collections.abc import Callable
from time import monotonic

from server.store.cluster import claims
from server.store.database import Database

log = logging.getLogger("holdfast.claimer")

CHECK_SECONDS = 60.0
MAX_COUNTED = 1000
"""Responses that one check reads, so that a long queue does not make it slow."""
MAX_MODELS = 5
"""Models that one check names."""


class UnservedQueue:
    """Checks once a minute, on the claimer's thread of every replica, whatever its role."""

    def __init__(self, database: Database, clock: Callable[[], float] = monotonic) -> None:
        self._database = database
        self._clock = clock
        self._next_check = clock() + CHECK_SECONDS

    def check(self) -> None:
        """Logs a warning for each model without a worker, if a check is due. Raises DatabaseError."""
        now = self._clock()
        if now < self._next_check:
            return
        self._next_check = now + CHECK_SECONDS
        with self._database.begin() as connection:
            unserved = claims.count_unserved(connection, MAX_COUNTED)
        for model, count in unserved[:MAX_MODELS]:
            log.warning(
                "%d background responses stay queued: no living replica with the role all or worker serves "
                "their model %r",
                count,
                model,
            )
