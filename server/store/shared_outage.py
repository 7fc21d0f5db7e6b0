"""A database that is gone, as the threads of one process know it: one of them tries, the others wait for it.

Without this every request would find out for itself, one after the other, on every thread there is.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from sqlalchemy.exc import OperationalError


class OutageContinues(OperationalError):
    """The database was gone when this began, and has not come back in time."""

    def __init__(self) -> None:
        super().__init__("connect", None, TimeoutError("the database is still away"))


class SharedOutage:
    """Whether the database is gone, and since when. Any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._since: float | None = None
        self._tried = False
        """Somebody is finding out whether it is back."""

    def began(self, when: float) -> None:
        """Something that was asked at that time (of `monotonic`) was not answered."""
        with self._changed:
            self._since = when if self._since is None else self._since

    def ended(self) -> None:
        """The database answered."""
        if self._since is None:
            return
        with self._changed:
            self._since = None
            self._changed.notify_all()

    def deadline(self, seconds: float) -> float:
        """Until when somebody waits who begins now: an outage is waited for once, not by each one anew."""
        since = self._since
        return (monotonic() if since is None else since) + seconds

    @contextmanager
    def turn(self, deadline: float) -> Iterator[None]:
        """Around one try. Waits while another one tries; raises StillAway at the deadline."""
        with self._changed:
            if not self._changed.wait_for(self._may_try, max(0.0, deadline - monotonic())):
                raise OutageContinues
            alone = self._since is not None
            self._tried = self._tried or alone
        try:
            yield
        finally:
            if alone:
                with self._changed:
                    self._tried = False
                    self._changed.notify()

    def _may_try(self) -> bool:
        return self._since is None or not self._tried
