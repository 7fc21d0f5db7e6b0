"""A circuit breaker for database outages: one thread probes, the other threads of the process wait for it.

Without it every request would wait for its own timeout, on every thread of the pool.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from sqlalchemy.exc import OperationalError


class OutageContinues(OperationalError):
    """The outage did not end before the deadline."""

    def __init__(self) -> None:
        super().__init__("connect", None, TimeoutError("the database is still away"))


class SharedOutage:
    """Whether the database is unavailable, and since when. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._down_since: float | None = None
        self._probing = False
        """Whether a thread is probing."""

    def report_failure(self, when: float) -> None:
        """A request that began at `when` (of `monotonic`) failed."""
        with self._changed:
            self._down_since = when if self._down_since is None else self._down_since

    def report_success(self) -> None:
        """The database answered."""
        if self._down_since is None:
            return
        with self._changed:
            self._down_since = None
            self._changed.notify_all()

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
