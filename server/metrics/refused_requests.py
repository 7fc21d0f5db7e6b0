"""`RefusedRequests`: counts of requests that were answered with an error, which a thread stores.

A request changes a count in memory. Every WRITE_SECONDS the counts are added to the table by one statement.
"""

import logging
import threading
from collections import Counter
from collections.abc import Mapping

from server.caller import TOKEN
from server.errors import ApiError
from server.logs.context import CURRENT
from server.metrics.families import OTHER
from server.store.administration import refused_request_counts
from server.store.administration.refused_request_counts import RefusedRequest
from server.store.database import Database
from server.store.database_errors import DatabaseError

log = logging.getLogger("holdfast.metrics")

WRITE_SECONDS = 10.0
MAX_KINDS = 1000
"""Different refusals that are counted between two writes; all others are counted together."""
_UNKNOWN = RefusedRequest("", "", 0, OTHER)


class RefusedRequests:
    """Counts; any thread."""

    def __init__(self) -> None:
        self._counts: Counter[RefusedRequest] = Counter()
        self._lock = threading.Lock()

    def count(self, error: ApiError) -> None:
        request = CURRENT.get()
        tenant, route, key_id = "", "", ""
        if request is not None:
            tenant, route, key_id = request.tenant or "", request.route, request.key_id or ""
        if key_id.startswith(TOKEN):
            key_id = ""  # an access token: there is no such key
        self.add({RefusedRequest(tenant, route, error.status, error.code or "", key_id): 1})

    def take(self) -> Counter[RefusedRequest]:
        """The counts since the last call."""
        with self._lock:
            taken, self._counts = self._counts, Counter()
        return taken

    def add(self, counts: Mapping[RefusedRequest, int]) -> None:
        """Adds counts, also those that could not be stored."""
        with self._lock:
            for refusal, count in counts.items():
                known = refusal in self._counts or len(self._counts) < MAX_KINDS
                self._counts[refusal if known else _UNKNOWN._replace(status=refusal.status)] += count

    def write(self, database: Database) -> None:
        """Stores what was counted since the last time; what cannot be stored now is stored later."""
        counts = self.take()
        if not counts:
            return
        try:
            with database.begin() as connection:
                refused_request_counts.add(connection, counts)
        except DatabaseError as error:
            self.add(counts)
            log.debug("refused requests are stored later: %s", type(error).__name__)
