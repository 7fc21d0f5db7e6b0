"""`PartitionDrop`: removes partitions of responses and of the ledger whose whole range is beyond retention.

It first finishes what a process before it has detached and not dropped. Of several replicas one acts at a
time.
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Literal

from server.crashpoints import crashpoint
from server.store.content.deletion import ExpiredRange
from server.store.database import Connection, Database, clock
from server.store.database_errors import TransientError, is_contention
from server.store.schema import partitions
from server.store.schema.partitions import CONTENT, Partition

log = logging.getLogger("holdfast.retention")
Table = Literal["responses", "usage_ledger"]
STATEMENT_SECONDS = 900
"""The time of a statement that reads a whole partition, which nobody waits for."""
RECHECK_SECONDS = 3600.0
"""The time for which a partition is purged row by row before it is looked at again."""
BUSY_SECONDS = 600.0
"""The time for which a partition that was in use is left alone."""
TRIES = 5
PAUSE_S = 1.0
"""The pause between two tries to lock tables in use, for the queries that queued behind the first."""


class PartitionDrop:
    """Knows for an hour which partitions are not worth dropping. Not thread-safe."""

    def __init__(
        self,
        database: Database,
        retention_days: int,
        ledger_days: int,
        quiet_seconds: float,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._database = database
        entry_days = max(ledger_days, retention_days) if ledger_days else 0
        self._days: dict[Table, int] = {"responses": retention_days, "usage_ledger": entry_days}
        """The age at which partitions go, by table. Entries of stored responses stay in the ledger."""
        self._terms = {"responses": quiet_seconds, "usage_ledger": ledger_days}
        self._sleep = sleep
        self._looked_at: dict[str, float] = {}
        """The partitions that were not worth dropping, and when that was found."""
        self._busy_at: dict[str, float] = {}
        """The partitions that were in use, and when that was found."""

    def run(self, table: Table = "responses") -> Counter[str]:
        """Removes what is due and not in use; returns how many responses readers have lost, by tenant."""
        with self._connection() as connection:
            done = self._finish(connection, table)
            for parts in self._due(connection, table):
                if self._detach(connection, table, parts):
                    done += self._finish(connection, table)
        return done

    def finish(self) -> bool:
        """Drops what is detached already; returns whether nothing of it is left. Raises DatabaseError."""
        with self._connection() as connection:
            for table in self._days:
                self._finish(connection, table)
            with connection.begin():
                return not any(partitions.detached(connection, table) for table in self._days)

    def row_by_row(self, table: Table = "responses") -> tuple[ExpiredRange, ...]:
        """The ranges of rows that are purged one by one, because their partition does not go soon."""
        decided = frozenset(name for name in self._looked_at if self._is_decided(name))
        with self._database.begin() as connection:
            ranged = partitions.ranged_partitions(connection, table)
            return partitions.row_by_row(ranged, clock(connection), self._days[table], decided)

    def _is_decided(self, name: str) -> bool:
        found_at = self._looked_at.get(name)
        return found_at is not None and time.monotonic() - found_at < RECHECK_SECONDS

    def _due(self, connection: Connection, table: Table) -> Sequence[Sequence[Partition]]:
        """Due partitions; one of responses with those of CONTENT of its range, if all are there."""
        with connection.begin():
            now = clock(connection)
            tables = CONTENT if table == "responses" else (table,)
            first, *others = [partitions.ranged_partitions(connection, name) for name in tables]
        by_range = [{partition.range: partition for partition in other} for other in others]
        return [
            [partition, *(other[partition.range] for other in by_range)]
            for partition in partitions.due_ranges(first, now, self._days[table])
            if all(partition.range in other for other in by_range)
        ]

    def _detach(self, connection: Connection, table: Table, parts: Sequence[Partition]) -> bool:
        """Detaches the partitions of one range, the first of which is of `table`, if that is worth it."""
        partition = parts[0]
        busy_at = self._busy_at.get(partition.name, -math.inf)
        if self._is_decided(partition.name) or time.monotonic() - busy_at < BUSY_SECONDS:
            return False
        with connection.begin():
            survivors = partitions.survivors(connection, table, partition, self._terms[table])
            survey = partitions.survey(connection, table, partition, survivors)
        if not partitions.is_dropped(survey):
            self._looked_at[partition.name] = time.monotonic()
            return False
        for _ in range(TRIES):
            try:
                with connection.begin():
                    if not partitions.try_lock(connection):
                        return False
                    names, age = [part.name for part in parts], timedelta(days=self._days[table])
                    partitions.detach(connection, names, age, survivors)
                    crashpoint("detach.written")
                crashpoint("detach.committed")
                return True
            except TransientError as error:
                if not is_contention(error):
                    raise
                self._sleep(PAUSE_S)
        self._busy_at[partition.name] = time.monotonic()
        log.info("%s is in use and is dropped later", partition.name)
        return False

    def _finish(self, connection: Connection, table: Table) -> Counter[str]:
        done: Counter[str] = Counter()
        with connection.begin():
            detached = partitions.detached(connection, table)
        for ended in detached:
            with connection.begin():
                if not partitions.try_lock(connection):
                    return done
                if ended in partitions.detached(connection, table):
                    done.update(partitions.drop(connection, table, ended, self._terms[table]))
                    crashpoint("drop.written")
            crashpoint("drop.committed")
            log.info("dropped the partition of %s that ended at %s", table, ended)
        return done

    def _connection(self) -> Connection:
        limits = {"statement_timeout": f"{STATEMENT_SECONDS}s", "lock_timeout": "1s"}
        return self._database.dedicated_connection("retention", limits=limits, patience=STATEMENT_SECONDS)
