"""`PromiseCheck`: checks the newest responses as `holdfast audit --quick` does, one run at a time.

It reads only, at most 10,000 responses for 30 seconds, and pauses for as long as it works, so that it takes
no more than half of the interpreter from what the server does. The last result is kept in memory.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic
from typing import Final

from server.errors import Conflict, Overloaded
from server.maintenance.audit_responses import Limits, Violation
from server.maintenance.audit_run import Tally, response_violations, tenants_of
from server.store.audit_snapshot import Scope
from server.store.database import Database
from server.store.database_errors import DatabaseError, in_one_line

log = logging.getLogger("holdfast.console")

MAX_RESPONSES: Final = 10_000
"""Of a run, divided among the tenants."""
MAX_SECONDS: Final = 30.0
MAX_FINDINGS: Final = 200
"""Kept of a run; all are counted."""
_MAX_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class CheckResult:
    """A run that has ended."""

    started_at: datetime
    seconds: float
    responses: int
    unfinished: int
    counts: Mapping[str, int]
    """Findings by invariant."""
    findings: Sequence[Violation]
    of_each_tenant: int
    """The most responses of a tenant."""
    ended_early: str
    """Why not all of these were read, in a sentence; empty if they were."""


class PromiseCheck:
    """Thread-safe; one in a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running_since: datetime | None = None
        self._last: CheckResult | None = None

    @property
    def running_since(self) -> datetime | None:
        return self._running_since

    @property
    def last(self) -> CheckResult | None:
        return self._last

    def start(self, database: Database, stopping: threading.Event) -> None:
        """Begins a run, which ends early when the server stops.

        Raises Conflict while one runs, and Overloaded where no thread can be made.
        """
        with self._lock:
            if self._running_since is not None:
                raise Conflict("A check is running already.")
            started = self._running_since = datetime.now(UTC)
        run = threading.Thread(
            target=self._run, args=(database, stopping, started), name="promises", daemon=True
        )
        try:
            run.start()
        except RuntimeError as error:
            self._running_since = None
            raise Overloaded("The server can begin no more threads; try again later.") from error

    def _run(self, database: Database, stopping: threading.Event, started: datetime) -> None:
        try:
            self._last = check(database, stopping, started)
        except Exception:  # a check that fails must not be the last one
            log.exception("the check of the console failed")
            self._last = CheckResult(started, 0.0, 0, 0, {}, [], 0, "The check failed; the log says why.")
        finally:
            self._running_since = None


def check(
    database: Database,
    stopping: threading.Event,
    started: datetime,
    clock: Callable[[], float] = monotonic,
) -> CheckResult:
    """One run."""
    tally, began, each = Tally(), clock(), MAX_RESPONSES
    findings: list[Violation] = []
    turns = _Turns(stopping, clock)
    ended_early = ""
    try:
        with closing(database.dedicated_connection("promises")) as connection:
            tenants = tenants_of(connection, Scope())
            each = max(1, MAX_RESPONSES // max(1, len(tenants)))
            scope = Scope(limit=each, replays=False)
            for finding in response_violations(connection, tenants, scope, Limits(), tally, turns.goes_on):
                if len(findings) < MAX_FINDINGS:
                    findings.append(finding)
    except DatabaseError as error:
        ended_early = f"The database did not let it go on: {in_one_line(error)}."
    return CheckResult(
        started,
        clock() - began,
        tally.responses,
        tally.unfinished,
        dict(tally.violations),
        findings,
        each,
        ended_early or turns.ended_early,
    )


class _Turns:
    """Between two responses: pauses, and says whether the run goes on."""

    def __init__(self, stopping: threading.Event, clock: Callable[[], float]) -> None:
        self._stopping, self._clock = stopping, clock
        self._until = clock() + MAX_SECONDS
        self._worked_since = clock()
        self._count = 0
        self.ended_early = ""

    def goes_on(self) -> bool:
        """Waits for as long as the last response took."""
        self._stopping.wait(min(self._clock() - self._worked_since, _MAX_PAUSE_S))
        self._worked_since = self._clock()
        self._count += 1
        if self._stopping.is_set():
            self.ended_early = "It ended with the server."
        elif self._worked_since > self._until:
            self.ended_early = f"It ended after {MAX_SECONDS:.0f} s."
        elif self._count > MAX_RESPONSES:
            self.ended_early = f"It ended after {MAX_RESPONSES:,} responses."
        return not self.ended_early
