"""`PartitionDrop`: removes partitions of responses and of the ledger whose whole range is beyond retention.

It first finishes what a process before it has detached and not dropped. Of several replicas one acts at a
time.
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta

from server.crashpoints import crashpoint
from server.store.content.deletion import ExpiredRange
from server.store.content.responses import ResponseKey
from server.store.database import Connection, Database, clock
from server.store.database_errors import TransientError, is_contention
from server.store.schema import partition_removal, partitions
from server.store.schema.partitions import CONTENT, Partition
from server.store.timeout_connection import psycopg_connection

log = logging.getLogger("holdfast.retention")

STATEMENT_SECONDS = 900
"""For what reads a whole partition, which nobody waits for."""
RECHECK_SECONDS = 3600.0
"""The time for which a partition is purged row by row before it is looked at again."""
BUSY_SECONDS = 600.0
"""The time for which a partition that was in use is left alone."""
TRIES = 5
PAUSE_S = 1.0
"""Between two tries to lock tables in use; the queries that queued behind the first one run meanwhile."""


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
        self._days = retention_days
        self._ledger_days = ledger_days
        self._entry_days = max(ledger_days, retention_days) if ledger_days else 0
        """The age that partitions of the ledger reach: entries of stored responses stay."""
        self._quiet = quiet_seconds
        self._sleep = sleep
        self._looked_at: dict[str, float] = {}
        """The partitions that were not worth dropping, and when that was found."""
        self._busy_at: dict[str, float] = {}
        """The partitions that were in use, and when that was found."""

    def run(self) -> Counter[str]:
        """Removes what is due; returns how many responses readers have lost, by tenant. Raises DatabaseError.

        A partition that is in use stays for the next run.
        """
        done: Counter[str] = Counter()
        with self._connection() as connection:
            done += self._finish(connection)
            for parts in self._due(connection):
                if self._detach(connection, "responses", parts, timedelta(days=self._days)):
                    done += self._finish(connection)
        return done

    def run_ledger(self) -> None:
        """Removes due partitions of the ledger, whose entries stay while their response does.

        Raises DatabaseError.
        """
        if not self._ledger_days:
            return
        days = self._entry_days
        with self._connection() as connection:
            self._finish_ledger(connection)
            with connection.begin():
                found = partitions.ranged_partitions(connection, "usage_ledger")
                due = partition_removal.due_ranges(found, clock(connection), days)
            for partition in due:
                if self._detach(connection, "usage_ledger", [partition], timedelta(days=days)):
                    self._finish_ledger(connection)

    def finish(self) -> bool:
        """Drops what is detached already; returns whether nothing of it is left. Raises DatabaseError."""
        with self._connection() as connection:
            self._finish(connection)
            self._finish_ledger(connection)
            with connection.begin():
                tables = ("responses", "usage_ledger")
                return not any(partition_removal.detached(connection, table) for table in tables)

    def row_by_row(self) -> tuple[ExpiredRange, ...]:
        """The ranges of responses that are purged one by one, because their partition does not go soon."""
        return self._row_by_row_of("responses", self._days)

    def entries_row_by_row(self) -> tuple[ExpiredRange, ...]:
        """The ranges of the ledger's entries that are purged one by one."""
        return self._row_by_row_of("usage_ledger", self._entry_days)

    def _row_by_row_of(self, table: str, days: int) -> tuple[ExpiredRange, ...]:
        decided = frozenset(name for name in self._looked_at if self._is_decided(name))
        with self._database.begin() as connection:
            found = partitions.ranged_partitions(connection, table)
            return partition_removal.row_by_row(found, clock(connection), days, decided)

    def _is_decided(self, name: str) -> bool:
        found_at = self._looked_at.get(name)
        return found_at is not None and time.monotonic() - found_at < RECHECK_SECONDS

    def _due(self, connection: Connection) -> Sequence[Sequence[Partition]]:
        """Partitions of CONTENT with one range, those of each range together, without undroppable ones."""
        with connection.begin():
            now = clock(connection)
            by_table = [partitions.ranged_partitions(connection, table) for table in CONTENT]
        others = [{one.range: one for one in found} for found in by_table[1:]]
        return [
            [one, *(found[one.range] for found in others)]
            for one in partition_removal.due_ranges(by_table[0], now, self._days)
            if all(one.range in found for found in others)
        ]

    def _detach(self, connection: Connection, table: str, parts: Sequence[Partition], age: timedelta) -> bool:
        """Detaches the partitions of one range, the first of which is of `table`, if that is worth it."""
        partition = parts[0]
        busy_at = self._busy_at.get(partition.name, -math.inf)
        if self._is_decided(partition.name) or time.monotonic() - busy_at < BUSY_SECONDS:
            return False
        with connection.begin():
            kept = self._survivors(connection, table, partition)
            found = partition_removal.survey(connection, table, partition, kept)
        if not partition_removal.is_dropped(found):
            self._looked_at[partition.name] = time.monotonic()
            return False
        for _ in range(TRIES):
            try:
                with connection.begin():
                    if not partitions.try_lock(connection):
                        return False
                    partition_removal.detach(connection, [one.name for one in parts], age, kept)
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

    def _survivors(self, connection: Connection, table: str, partition: Partition) -> list[ResponseKey]:
        if table == "responses":
            return partition_removal.surviving_responses(connection, partition, self._quiet)
        return partition_removal.surviving_entries(connection, partition, self._ledger_days)

    def _finish(self, connection: Connection) -> Counter[str]:
        done: Counter[str] = Counter()
        with connection.begin():
            left = partition_removal.detached(connection, "responses")
        for ended in left:
            with connection.begin():
                if not partitions.try_lock(connection):
                    return done
                if ended in partition_removal.detached(connection, "responses"):
                    done.update(partition_removal.drop_responses(connection, ended, self._quiet))
                    crashpoint("drop.written")
            crashpoint("drop.committed")
            log.info("dropped the partition of responses that ended at %s", ended)
        return done

    def _finish_ledger(self, connection: Connection) -> None:
        with connection.begin():
            left = partition_removal.detached(connection, "usage_ledger")
        for ended in left:
            with connection.begin():
                if not partitions.try_lock(connection):
                    return
                if ended in partition_removal.detached(connection, "usage_ledger"):
                    partition_removal.drop_entries(connection, ended, self._ledger_days)
            log.info("dropped the partition of the ledger that ended at %s", ended)

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        limits = {"statement_timeout": f"{STATEMENT_SECONDS}s", "lock_timeout": "1s"}
        with closing(self._database.dedicated_connection("retention", limits=limits)) as connection:
            with psycopg_connection(connection) as raw:
                raw.timeout_seconds = STATEMENT_SECONDS
            yield connection
