"""`SharedOutage`: a circuit breaker for all threads that use the database. Thread-safe."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from sqlalchemy.exc import OperationalError

from server.store.database_errors import first_line

log = logging.getLogger("holdfast.database")


class OutageContinues(OperationalError):
    """The outage did not end before the deadline."""

    def __init__(self) -> None:
        super().__init__("connect", None, TimeoutError("the database is still away"))


class SharedOutage:
    """A circuit breaker: one thread probes an unavailable database, the others wait for it. Thread-safe.
    Without it every request would wait for its own timeout, on every thread of the pool.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._down_since: float | None = None
        self._probing = False

    def report_failure(self, when: float, error: Exception | None = None) -> None:
        """A request that began at `when` (of `monotonic`) failed."""
        with self._changed:
            if self._down_since is not None:
                return
            self._down_since = when
        log.warning("the database does not answer: %s", first_line(error) if error else "no reason is known")

    def report_success(self) -> None:
        """The database answered."""
        if self._down_since is None:
            return
        with self._changed:
            since, self._down_since = self._down_since, None
            self._changed.notify_all()
        if since is not None:
            log.warning("the database is back after %.1f s", monotonic() - since)

    def deadline(self, seconds: float) -> float:
        """The deadline of a retry that begins now: `seconds` after now, or after the outage began."""
        since = self._down_since
        return (monotonic() if since is None else since) + seconds

    @contextmanager
    def attempt(self, deadline: float) -> Iterator[None]:
        """Surrounds one try. Waits while another thread probes; raises OutageContinues at the deadline."""
        with self._changed:
            if not self._changed.wait_for(self._may_try, max(0.0, deadline - monotonic())):
                raise OutageContinues
            alone = self._down_since is not None
            self._probing = self._probing or alone
        try:
            yield
        finally:
            if alone:
                with self._changed:
                    self._probing = False
                    self._changed.notify()

    def _may_try(self) -> bool:
        return self._down_since is None or not self._probing
