"""The recorder's transactions: all runs' updates in one, what fails there one by one, again after an outage.

The recorder's thread only.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from math import inf
from time import monotonic, sleep
from typing import Literal
from uuid import UUID

from engine.stats_snapshot import Histogram
from server.crashpoints import crashpoint
from server.protocol.ids import response_id
from server.recording.lone_commit import Way, commit_alone
from server.recording.recent_commits import MAX_BYTES, RecentCommits
from server.recording.recorder_messages import RecorderMessage, RunUpdate
from server.recording.run_registry import RunRegistry
from server.recording.write_updates import EventsLost, is_written, log_chunks, must_reach_disk, write
from server.store import commit_probe
from server.store.cluster import leases
from server.store.commit_probe import Acknowledged
from server.store.database import Connection, Database, commit_synchronously, is_responsive, set_timeouts
from server.store.database_errors import CommitFailure, classify, first_line, is_statement_timeout
from server.store.log_append import LogGap, NewLogRow, append_and_commit
from server.store.timeout_connection import RECORDER_TIMEOUTS

log = logging.getLogger("holdfast.recorder")

_OUTAGE_PAUSE_SECONDS = 0.2
_FRESH_SECONDS = 1.0
"""An idle connection older than this is probed before a commit: a vanished server is noticed by the probe
within 2 s, by a commit only after 6 s."""
_REPORT_AFTER_SECONDS = 2.0
"""The time of an outage of the database after which /health/ready answers that this replica is not ready."""
_ALONE_SECONDS = 0.5
"""The time for commits of single updates between two joint commits. A joint commit gives up waiting for a
lock after 0.25 s; together with that, other runs wait for less than a second."""
_LOCK_MS, _STATEMENT_MS, _LAST_STATEMENT_MS = 50, 600, 5000
"""`lock_timeout` and `statement_timeout` of the commit of a single update. For an end with very large items
the second try has the usual limit of a statement. All other runs wait for that try; where it fails, no
further one is made here."""
MAX_TRIES = 11
"""Tries to commit an update alone, after which it is given up: with the pauses between them, some 19 s,
longer than any transaction of ours holds a row."""
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.1, 3.2
LIMIT_PAUSE_SECONDS = 5.0
"""The pause before the next try of an update that exceeds an operator's limit, which may be raised."""
COMMIT_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


def pause_after(tries: int) -> float:
    """Seconds until an update is committed alone again, after so many tries that failed. Pure."""
    return min(FIRST_PAUSE_SECONDS * 2.0 ** min(tries - 1, 16), MAX_PAUSE_SECONDS)


@dataclass(frozen=True, slots=True)
class CommitLimits:
    """Bounds of the commits of one recorder."""

    tries: int = MAX_TRIES
    last_statement_ms: int = _LAST_STATEMENT_MS
    report_after_seconds: float = _REPORT_AFTER_SECONDS
    fresh_seconds: float = _FRESH_SECONDS
    recent_bytes: int = MAX_BYTES


class _CommitsLost(Exception):
    def __init__(self, responses: Sequence[UUID]) -> None:
        self.responses = responses


@dataclass(slots=True)
class _Transaction:
    """Updates that are committed together, in as many tries as it takes."""

    updates: Sequence[RunUpdate] = ()
    messages: Sequence[RecorderMessage] = ()
    """The messages from which the updates come."""
    state: Literal["unapplied", "applied", "in doubt"] = "unapplied"
    """`unapplied`: no try has come to the updates, so a failure is no run's fault. `applied`: it may be.
    `in doubt`: the connection was lost after that, and a try may have been committed."""
    synchronous: bool = False
    """The last try waits for the disk."""


class Committer:
    """Commits the updates of all runs together; alone what cannot be committed with the others.

    An update that fails alone is tried again a few times, while later messages of its run extend it. Then its
    response ends as failed, or is released for any replica to claim; where neither can be written, this
    replica forgets it, and its heartbeat releases it.
    """

    def __init__(
        self,
        database: Database,
        replica: UUID,
        registry: RunRegistry,
        clock: Callable[[], float] = monotonic,
        limits: CommitLimits | None = None,
    ) -> None:
        self.give_up_at = inf
        """The time from which an outage is not waited out any more."""
        self._limits = limits or CommitLimits()
        self.recent = RecentCommits(clock, self._limits.recent_bytes)
        self._database = database
        self._replica = replica
        self._registry = registry
        self._clock = clock
        self._connection: Connection | None = None
        self._used_at = 0.0
        self._failing_since: float | None = None
        self._failure = ""
        self.seconds = Histogram(COMMIT_BOUNDS)
        """Durations of commits that succeeded, without earlier tries."""
        self.failures: Counter[CommitFailure] = Counter()
        """Commits that failed, by why."""

    def trouble(self) -> str | None:
        """Why nothing is committed at the moment; None if all is well. Any thread."""
        since = self._failing_since
        if since is None or self._clock() - since < self._limits.report_after_seconds:
            return None
        return f"the database does not take what is recorded: {self._failure}"

    def commit(self, messages: Sequence[RecorderMessage]) -> list[RunUpdate]:
        """Applies messages to their runs once; returns the updates that it could commit together.

        An outage is waited out, and so is a schema or a right that is not as this release needs it, and all
        runs with it. Any other failure is the fault of some of the updates, most likely of one that ends its
        run: those that only append to event logs, whose rows nobody else locks, are committed without them
        then, and the others isolated. Raises Fenced, or the last error after `give_up_at`.

        A commit whose answer was lost may have happened, so the next try looks before it writes. It may also
        still be running: then the next try, which waits for it, fails, and what it writes is isolated. If
        earlier commits were lost, their responses are isolated before anything is written that follows them.
        """
        joint = _Transaction(messages=messages)
        error = self._commit_unless_lost(joint)
        if error is None:
            return list(joint.updates)
        log.warning("commit failed, so runs are committed one by one: %s", type(error).__name__)
        ends = [update for update in joint.updates if update.is_last]
        rest = _Transaction([update for update in joint.updates if not update.is_last], state=joint.state)
        self.isolate(ends)
        if ends and rest.updates:
            error = self._commit_unless_lost(rest)
        if error is None:
            return list(rest.updates)
        self.isolate(rest.updates)
        return []

    def isolate(self, updates: Sequence[RunUpdate]) -> None:
        """Puts updates aside, to be committed alone after the retained rows of their responses."""
        earlier = self.recent.take({update.run.facts.id for update in updates})
        for update in updates:
            if (before := earlier.get(update.run.facts.id)) is not None:
                update.earlier_rows = before.earlier_rows
            self._registry.isolated[update.run.facts.id.hex] = update

    def commit_isolated(self) -> list[RunUpdate]:
        """Tries the isolated updates that are due; returns what is stored. Raises as `commit` does."""
        stored: list[RunUpdate] = []
        until = self._clock() + _ALONE_SECONDS
        for key, update in list(self._registry.isolated.items()):
            if (now := self._clock()) > until:
                break
            if update.retry_at <= now and (result := self._try_alone(update)) is not None:
                del self._registry.isolated[key]
                if result is not update:
                    self._registry.remove(update.run.facts.id)
                stored.append(result)
        return stored

    def seconds_until_retry(self) -> float | None:
        """Seconds until an isolated update is due; None if there are none."""
        times = [update.retry_at for update in self._registry.isolated.values()]
        return max(0.0, min(times) - self._clock()) if times else None

    def _commit_unless_lost(self, transaction: _Transaction) -> Exception | None:
        """`_execute` of a joint transaction, after which lost responses are isolated."""
        while True:
            try:
                return self._execute(transaction, self._commit_together)
            except _CommitsLost as lost:
                self._isolate_lost(lost.responses, transaction.updates)
                if transaction.state != "unapplied":
                    self.isolate(transaction.updates)
                    transaction.updates = ()
                    return None

    def _isolate_lost(self, responses: Sequence[UUID], updates: Sequence[RunUpdate] = ()) -> None:
        """Isolates what the database has lost of responses, but for those of `updates`."""
        log.error(
            "the database has lost what was committed of %d responses; it is written again", len(responses)
        )
        lost = set(responses) - {update.run.facts.id for update in updates}
        retained = self.recent.take(lost)
        running = {response: run for response in lost if (run := self._registry.get(response))}
        for response in lost:
            update = retained.get(response) or RunUpdate(running[response])
            self._registry.isolated[response.hex] = update

    def _try_alone(self, update: RunUpdate) -> RunUpdate | None:
        """Tries an isolated update; returns the update that is stored for it, None if a later try follows."""
        name, fields = response_id(update.run.facts.id), update.run.facts.log_fields
        result = LogGap() if update.has_gap else self._write_alone(update, "write")
        if isinstance(result, RunUpdate):
            return result
        trouble = classify(result)
        update.has_gap |= isinstance(result, EventsLost | LogGap)
        update.tries += trouble != "limited"
        pause = LIMIT_PAUSE_SECONDS if trouble == "limited" else pause_after(update.tries)
        update.retry_at = self._clock() + pause
        is_slow = update.tries > 1 and is_statement_timeout(result)
        if trouble in ("timed_out", "limited") and update.tries < self._limits.tries and not is_slow:
            log.warning("an update of %s is not stored yet: %s", name, type(result).__name__, extra=fields)
            return None
        log.error("an update of %s cannot be stored: %s", name, type(result).__name__, extra=fields)
        for way in _ways_out(update, trouble):
            result = self._write_alone(update, way)
            if isinstance(result, RunUpdate):
                return result
            log.error("%s cannot be ended (%s): %s", name, way, type(result).__name__, extra=fields)
        return None if update.has_gap else RunUpdate(update.run, released=True, cut_short=True)

    def _write_alone(self, update: RunUpdate, way: Way) -> RunUpdate | Exception:
        """Writes an update in a transaction of its own; returns the stored update, or the error."""
        results: list[RunUpdate] = []

        def write_it(connection: Connection, transaction: _Transaction) -> None:
            transaction.state, transaction.synchronous = "unapplied", True
            with connection.begin():
                statement_ms = self._limits.last_statement_ms if update.tries else _STATEMENT_MS
                set_timeouts(connection, lock_ms=_LOCK_MS, statement_ms=statement_ms)
                self._fence(connection, transaction)
                transaction.state = "applied"
                results.append(commit_alone(connection, self._replica, update, way))
                # A response that does not go on here is not remembered.
                transaction.updates = [last for last in results[-1:] if last is update or not last.released]
                crashpoint("recorder.written")

        while True:
            try:
                error = self._execute(_Transaction(), write_it)
            except _CommitsLost as lost:
                self._isolate_lost(lost.responses)
            else:
                return error or results[-1]

    def _execute(
        self, transaction: _Transaction, commit: Callable[[Connection, _Transaction], None]
    ) -> Exception | None:
        """Tries until the updates are committed; returns the error if one of the updates is at fault."""
        while True:
            began = monotonic()
            try:
                commit(self._connect(), transaction)
            except leases.Fenced:
                raise
            except _CommitsLost:
                self._failing_since = None
                raise
            except Exception as error:  # noqa: BLE001 - also of our own code: it may concern one run only
                trouble = classify(error)
                self.failures[trouble] += 1
                self.close()
                is_applied = transaction.state != "unapplied"
                if is_applied and trouble not in ("unavailable", "schema_mismatch"):
                    self._failing_since = None
                    return error
                if is_applied and trouble == "unavailable":
                    transaction.state = "in doubt"
                self._await_database(error, trouble)
            else:
                self._failing_since = None
                self.seconds.observe(monotonic() - began)
                self.recent.committed(transaction.updates, synchronous=transaction.synchronous)
                return None

    def _commit_together(self, connection: Connection, joint: _Transaction) -> None:
        """Applies all messages in the first try past the fence, and writes. Raises Fenced and such."""
        flush = self.recent.flush_due
        joint.synchronous = self._database.waits_for_disk or flush
        if joint.state == "unapplied" and self._registry.only_appends(joint.messages):
            make_rows = partial(self._log_chunks, joint)
            probe = self.recent.probe
            if append_and_commit(connection, self._replica, make_rows, probe=probe, synchronous=flush):
                return
        with connection.begin():
            now = self._fence(connection, joint)
            if flush:
                commit_synchronously(connection)
            if joint.state == "in doubt" and self._is_written(connection, joint.updates):
                log.warning("a commit that was not answered had happened")
            else:
                if joint.state == "unapplied":
                    self._apply(joint, now)
                joint.synchronous |= must_reach_disk(joint.updates)
                write(connection, self._replica, joint.updates)
            crashpoint("recorder.written")

    def _fence(self, connection: Connection, transaction: _Transaction) -> datetime:
        """The database's time. Raises Fenced, or _CommitsLost if what was acknowledged is not there."""
        recent = self.recent
        now, match = commit_probe.fence(connection, self._replica, recent.probe)
        if recent.is_doubted or not match:
            if lost := commit_probe.lost(connection, self._replica, self._acknowledged(transaction.updates)):
                raise _CommitsLost(lost)
            # A probe's row may be deleted with its response; all else has just been seen.
            recent.probe, recent.is_doubted = None, False
        return now

    def _acknowledged(self, updates: Collection[RunUpdate]) -> list[Acknowledged]:
        """The state before these updates of all runs in progress, and of those that are over.

        Isolated updates look for themselves.
        """
        before = {update.run.facts.id: update.first_seq for update in updates}
        runs = {run.facts.id: run for run in [*self.recent.over(), *self._registry.runs]}
        runs |= {update.run.facts.id: update.run for update in updates}
        states = [
            Acknowledged(
                run.facts.tenant,
                response,
                run.facts.attempt,
                before.get(response, run.next_seq),
                is_over=response not in before and self._registry.get(response) is not run,
                stored=run.stored,
            )
            for response, run in runs.items()
            if response.hex not in self._registry.isolated
        ]
        return [state for state in states if state.stored or state.is_over]

    def _apply(self, joint: _Transaction, now: datetime) -> None:
        joint.updates = self._registry.apply(joint.messages, now)
        joint.state = "applied"

    def _log_chunks(self, joint: _Transaction, now: datetime) -> list[NewLogRow] | None:
        """Applies the messages; returns the log chunks to append, None if a run ended after all."""
        self._apply(joint, now)
        if any(update.is_last or update.unwritable for update in joint.updates):
            return None
        crashpoint("recorder.written")
        return log_chunks(joint.updates)

    def _is_written(self, connection: Connection, updates: Sequence[RunUpdate]) -> bool:
        """The updates were one transaction: the first one that leaves a trace answers for all."""
        written = (is_written(connection, self._replica, update) for update in updates)
        return next((answer for answer in written if answer is not None), True)

    def _await_database(self, error: Exception, trouble: CommitFailure) -> None:
        """Waits before the next try where no run is at fault; raises the error after `give_up_at`."""
        if trouble not in ("unavailable", "timed_out", "schema_mismatch") or self._clock() > self.give_up_at:
            raise error
        self._failing_since = self._failing_since or self._clock()
        self._failure = first_line(error)
        log.warning("commit failed, trying again: %s", type(error).__name__)
        sleep(_OUTAGE_PAUSE_SECONDS)

    def _connect(self) -> Connection:
        """The open connection if it still works, else a new one."""
        now = self._clock()
        is_old = now - self._used_at > self._limits.fresh_seconds
        if self._connection is not None and is_old and not is_responsive(self._connection):
            self.close()
        self._used_at = now
        if self._connection is None:
            self._connection = self._database.dedicated_connection(
                leases.recorder_application_name(self._replica), limits=RECORDER_TIMEOUTS
            )
        return self._connection

    def close(self) -> None:
        """Closes the connection; the next commit opens another."""
        if self._connection is not None:
            self._connection.invalidate()
            self._connection.close()
            self._connection = None


def _ways_out(update: RunUpdate, trouble: CommitFailure) -> Sequence[Way]:
    """The ways to end a response whose update cannot be stored, in the order of trying.

    A response whose row is blocked or whose end is too slow is released, for any replica to go on with or to
    end: to fail it now would meet the same lock, or take as long again, while all others wait.
    One that has lost events must not go on anywhere.
    """
    if update.has_gap:
        return ("fail",)
    return ("release",) if trouble == "timed_out" and update.run.stored else ("fail", "release")
