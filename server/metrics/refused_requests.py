"""`RefusedRequests`: counts of requests that were answered with an error, and the thread that stores them.

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
from server.supervised_thread import Retry, SupervisedThread

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
        """The current request was answered with this error."""
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


class RefusalWriter:
    """Stores the counts every WRITE_SECONDS, and at the end."""

    def __init__(self, database: Database, refused: RefusedRequests) -> None:
        self._database = database
        self._refused = refused
        self.thread = SupervisedThread("refused requests", self._turn, retry=Retry(max_failures=None))

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        self.thread.stop()
        self.write()

    def _turn(self) -> None:
        if not self.thread.wait(WRITE_SECONDS):
            self.write()

    def write(self) -> None:
        """Stores what was counted since the last time; what cannot be stored now is stored later."""
        counts = self._refused.take()
        if not counts:
            return
        try:
            with self._database.begin() as connection:
                refused_request_counts.add(connection, counts)
        except DatabaseError as error:
            self._refused.add(counts)
            log.debug("refused requests are stored later: %s", type(error).__name__)
