"""The retention thread: purges what expired, folds counters and long logs, makes partitions and statistics.

Any number of replicas may run one at the same time.
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from uuid import UUID

from server.configuration.settings import Config
from server.crashpoints import crashpoint
from server.limits.disk_space import Disk, Space
from server.maintenance.partition_drop import PartitionDrop
from server.protocol.ids import response_id
from server.store import log_append
from server.store.administration import (
    audit_trail,
    budget_standings,
    ledger,
    rate_buckets,
    refused_request_counts,
    spend,
    usage_days,
)
from server.store.cluster import cluster_overview
from server.store.content import conversations, deletion, idempotency_keys, images, storage_usage
from server.store.content.conversations import ConversationKey
from server.store.content.deletion import EVERYTHING, ExpiredRange
from server.store.database import Connection, Database, clock
from server.store.database_errors import DatabaseError, first_line, is_unavailable
from server.store.log_append import LogGap
from server.store.schema import partitions
from server.supervised_thread import Retry, SupervisedThread, Worker

log = logging.getLogger("holdfast.retention")

FOLD_SECONDS = 10.0
"""The time between two folds of the tenants' storage counters."""
FOLDED_LOGS = 100
"""The most event logs that are folded at a time."""
FOLD_LIMITS = {"statement_timeout": "40s", "lock_timeout": "1s"}
"""For some two million events. The log of more stays as it is."""
FOLD_PATIENCE_SECONDS = 45.0
"""More than the time-out of the statement."""
PARTITION_SECONDS = 3600.0
"""The time between two looks for missing partitions, which are made a day before they are needed."""
CONVERSATION_SECONDS = 3600.0
"""The time between two looks for expired conversations."""
STATISTICS_SECONDS = 600.0
"""The time between two looks at the statistics of partitioned tables."""
ANALYZE_SECONDS = 900
STOP_SECONDS = 5.0
"""The time for the statement under way when the process ends; a survey may take minutes."""
SENDS = 10
"""The time-outs of sending for which a slow reader may take until it queries again and learns that its
response has ended. Its page of frames is sent in fewer pieces than that."""


Pause = Callable[[float], bool]
"""Called after every batch with its duration in seconds; if it returns True, the work ends."""


def _go_on(_seconds: float) -> bool:
    return False


class DiskShort(Exception):
    """The database's disk is too full for a purge, which writes before it frees."""

    def __init__(self, shortage: Space) -> None:
        super().__init__(
            f"{shortage.free} bytes are free on the database's disk; {shortage.reserve} must be."
        )


@dataclass(frozen=True, slots=True)
class Purged:
    """Counts of what a purge removed."""

    responses: int = 0
    keys: int = 0
    by_tenant: Counter[str] = field(default_factory=Counter, compare=False)
    """`responses` by tenant."""
    conversations: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: "Purged") -> "Purged":
        return Purged(
            self.responses + other.responses,
            self.keys + other.keys,
            self.by_tenant + other.by_tenant,
            self.conversations + other.conversations,
        )

    def __str__(self) -> str:
        return (
            f"{self.responses} responses, {self.conversations.total()} conversations"
            f" and {self.keys} idempotency keys"
        )

    def record(self, database: Database, actor: str, action: str, **details: object) -> None:
        """Adds the purge to the audit trail, unless it removed nothing. Raises DatabaseError."""
        if self == Purged():
            return
        counts = {
            "responses": dict(self.by_tenant),
            "conversations": dict(self.conversations),
            "idempotency_keys": self.keys,
        }
        with database.begin() as connection:
            audit_trail.record(connection, actor, action, details={**details, **counts})


def quiet_seconds(config: Config) -> float:
    """The time from a response's end to its purge, so that no reader of its stream is cut off."""
    return SENDS * config.send_seconds


def purge(
    database: Database,
    disk: Disk,
    quiet: float,
    pause: Pause = _go_on,
    ranges: Sequence[ExpiredRange] = EVERYTHING,
) -> Purged:
    """Purges row by row until nothing expired is left in `ranges`, with a `pause` after every batch,
    which may end it. Raises DiskShort, DatabaseError.
    """
    done = Purged()
    while True:
        if (shortage := disk.shortage()) is not None:
            raise DiskShort(shortage)
        began = time.monotonic()
        with database.begin() as connection:
            batch = deletion.purge_batch(connection, quiet, ranges=ranges)
            if batch.moved:
                crashpoint("purge.written")
        if batch.moved:
            crashpoint("purge.committed")
        with database.begin() as connection:
            keys = idempotency_keys.delete_old_keys(connection)
        done += Purged(batch.responses, keys, Counter(batch.by_tenant))
        if not (batch.moved or keys) or pause(time.monotonic() - began):
            break
    remove_images(database, pause)
    return done


def drop_partitions(disk: Disk, drop: PartitionDrop) -> Purged:
    """Removes partitions whose whole range has expired. Raises DiskShort, DatabaseError."""
    if (shortage := disk.shortage()) is not None:
        raise DiskShort(shortage)
    lost = drop.run()
    return Purged(lost.total(), 0, lost)


def purge_conversations(database: Database, days: int, pause: Pause = _go_on) -> Purged:
    """Deletes the expired conversations, each in a transaction of its own. Raises DatabaseError."""
    done: Counter[str] = Counter()
    for key in expired_conversations(database, days, pause):
        began = time.monotonic()
        with database.begin() as connection:
            done[key.tenant] += conversations.delete_expired(connection, days, key)
        if pause(time.monotonic() - began):
            break
    return Purged(conversations=+done)


def expired_conversations(database: Database, days: int, pause: Pause = _go_on) -> Iterator[ConversationKey]:
    """The conversations that nothing has changed for so long, page by page. Raises DatabaseError."""
    after: ConversationKey | None = conversations.FIRST
    with database.begin() as connection:
        if not conversations.may_expire(connection, days):
            return
    while after is not None:
        began = time.monotonic()
        with database.begin() as connection:
            expired, after = conversations.expired_after(connection, days, after)
        seconds = time.monotonic() - began
        yield from expired
        if pause(seconds):
            return


def remove_images(database: Database, pause: Pause = _go_on) -> int:
    """Removes pictures that no item names any more; returns how many. Raises DatabaseError."""
    removed = 0
    while True:
        began = time.monotonic()
        with database.begin() as connection:
            batch = images.remove_unused(connection)
        removed += batch.images
        if not batch.more or pause(time.monotonic() - began):
            return removed


def fold(database: Database, pause: Pause = _go_on) -> None:
    """Merges each tenant's storage changes, what each key spent, and the usage of each day."""
    steps = (
        storage_usage.fold_changes,
        spend.fold,
        budget_standings.delete_over,
        rate_buckets.delete_full,
        usage_days.fold,
    )
    for merge in steps:
        if not _in_batches(database, merge, pause):
            return


def _in_batches(database: Database, work: Callable[[Connection], bool], pause: Pause) -> bool:
    """Repeats a transaction while it finds more to do; False if `pause` ended that."""
    while True:
        began = time.monotonic()
        with database.begin() as connection:
            more = work(connection)
        if not more:
            return True
        if pause(time.monotonic() - began):
            return False


def fold_logs(database: Database, pause: Pause = _go_on) -> None:
    """Folds event logs that were too long at their responses' ends, as far as they can be folded."""
    with database.begin() as connection:
        ended = log_append.unfolded(connection, FOLDED_LOGS)
    for key in ended:
        began = time.monotonic()
        try:
            opened = database.dedicated_connection("fold", limits=FOLD_LIMITS, patience=FOLD_PATIENCE_SECONDS)
            with opened as connection, connection.begin():
                log_append.fold_later(connection, *key)
        except (DatabaseError, LogGap) as error:
            if isinstance(error, DatabaseError) and is_unavailable(error):
                raise
            log.warning("the log of %s is not folded: %s", response_id(key[1]), type(error).__name__)
        if pause(time.monotonic() - began):
            return


def add_partitions(database: Database, retention_days: int) -> None:
    """Makes the next partitions of every table, each in a transaction of its own. Raises DatabaseError."""
    width = partitions.width_of(retention_days)
    for table in partitions.TABLES:
        with database.begin() as connection:
            if not partitions.try_lock(connection):
                return
            for added in partitions.add_missing(connection, table, clock(connection), width):
                log.info("%s has a partition from %s to %s", table, *added)


def analyze(database: Database) -> None:
    """Brings partitioned tables' statistics up to date, which may take minutes. Raises DatabaseError."""
    limits = {"statement_timeout": f"{ANALYZE_SECONDS}s", "lock_timeout": "200ms"}
    opened = database.dedicated_connection(
        "statistics", autocommit=True, limits=limits, patience=ANALYZE_SECONDS
    )
    with closing(opened) as connection:
        for table in partitions.TABLES:
            with connection.begin():
                partitions.analyze(connection, table)


def remove_old(
    database: Database,
    ledger_days: int,
    ranges: Sequence[ExpiredRange] = EVERYTHING,
    pause: Pause = _go_on,
) -> None:
    """Removes old entries of the ledger in `ranges`, what goes with them, and replicas that are long gone."""
    for expired in ranges if ledger_days else ():

        def remove(connection: Connection, expired: ExpiredRange = expired) -> bool:
            removed = ledger.remove_older(connection, ledger_days, expired)
            return removed == ledger.MAX_REMOVED

        if not _in_batches(database, remove, pause):
            return
    with database.begin() as connection:
        usage_days.forget_users(connection)
        refused_request_counts.forget(connection)
        cluster_overview.remove_ended(connection)


class Retention(Worker):
    """Purges every `purge_seconds`; folds counters and removes unused pictures every FOLD_SECONDS."""

    def __init__(self, database: Database, disk: Disk, config: Config, replica: UUID) -> None:
        self._database = database
        self._replica = replica
        self._disk = disk
        self._config = config
        self._quiet = quiet_seconds(config)
        self._drop = PartitionDrop(database, config.retention_days, config.ledger_days, self._quiet)
        self._partitions_at = -math.inf
        self._analyzed_at = -math.inf
        self._conversations_at = -math.inf
        self._purged_at = time.monotonic()
        self.purged = Purged()
        """The sum of this process's purges."""
        self.thread = SupervisedThread("retention", self._turn, retry=Retry(max_failures=None))

    def stop(self) -> None:
        """Ends the thread after the current batch, or breaks it off after STOP_SECONDS."""
        self.thread.request_stop()
        self.thread.join(STOP_SECONDS)

    def _turn(self) -> None:
        until_purge = self._purged_at + self._config.purge_seconds - time.monotonic()
        if self.thread.wait(max(0.0, min(until_purge, FOLD_SECONDS))):
            return
        if time.monotonic() - self._partitions_at >= PARTITION_SECONDS:
            self._add_partitions()
        if time.monotonic() - self._analyzed_at >= STATISTICS_SECONDS:
            self._analyze()
        try:
            if until_purge <= FOLD_SECONDS:
                self._purge()
            if self._disk.shortage() is None:
                remove_images(self._database, self.thread.wait)
                fold(self._database, self.thread.wait)
                fold_logs(self._database, self.thread.wait)
        except DatabaseError as error:
            log.warning("purge failed, trying again later: %s", type(error).__name__)

    def _add_partitions(self) -> None:
        self._partitions_at = time.monotonic()
        try:
            add_partitions(self._database, self._config.retention_days)
        except DatabaseError as error:  # rows without a partition of their own go to the default one
            log.warning("no partitions were made, trying again in an hour: %s", first_line(error))

    def _analyze(self) -> None:
        self._analyzed_at = time.monotonic()
        try:
            with self.thread.idle():
                analyze(self._database)
        except DatabaseError as error:
            log.warning("the statistics of large tables are not brought up to date: %s", first_line(error))

    def _purge(self) -> None:
        self._purged_at = time.monotonic()
        done = Purged()
        try:
            for step in (self._purge_partitions, self._purge_rows, self._purge_conversations):
                done += step()
        except DiskShort as short:
            log.warning("new responses are refused, and nothing is purged: %s", short)
            return
        finally:
            self.purged += done
            if done != Purged():
                log.info("purged %s", done)
                done.record(self._database, f"server:{self._replica}", "purge.retention")
        self._remove_old()

    def _purge_partitions(self) -> Purged:
        with self.thread.idle():
            return drop_partitions(self._disk, self._drop)

    def _purge_rows(self) -> Purged:
        return purge(self._database, self._disk, self._quiet, self.thread.wait, self._drop.row_by_row())

    def _purge_conversations(self) -> Purged:
        if time.monotonic() - self._conversations_at < CONVERSATION_SECONDS:
            return Purged()
        self._conversations_at = time.monotonic()
        return purge_conversations(self._database, self._config.conversation_days, self.thread.wait)

    def _remove_old(self) -> None:
        if self._config.ledger_days:
            with self.thread.idle():
                self._drop.run("usage_ledger")
        ranges = self._drop.row_by_row("usage_ledger")
        remove_old(self._database, self._config.ledger_days, ranges, self.thread.wait)
