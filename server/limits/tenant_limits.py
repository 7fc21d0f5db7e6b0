"""Limits of tenants at admission: unfinished responses, stored bytes, waiting background responses, history
that requests read.
Accepted responses still grow and other replicas accept more, so a quota may be exceeded by what is accepted
within seconds, and the queue, whose rows concurrent transactions do not see, by one a thread. Stored content
remains readable.
"""

import ctypes
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from server.caller import Caller
from server.errors import OVER_THE_LIMIT, InvalidRequest, Overloaded, StorageQuotaExceeded, TooManyRequests
from server.limits.shared_limit import UNBOUNDED, SharedLimit
from server.protocol.error_object import invalid_value
from server.store.cluster import claims
from server.store.content import storage_usage
from server.store.content.stored_items import HistorySize
from server.store.database import Connection, Database


def tenant_share(caller: Caller, own: int | None, setting: int | None, total: int) -> int:
    """The tenant's share of `total`: its own limit, the setting's, or half; all on a server without keys."""
    most = setting if own is None else own
    if most is not None:
        return min(most, total)
    return total if caller.key_id is None else max(1, total // 2)


UNFINISHED = "unfinished responses"
MAX_PROMPT_IMAGE_BYTES = 1024**3
"""Bytes of the pictures in prompts of unfinished responses, as PNG; one tenant may use half."""
MAX_INPUT_BYTES = 256 * 1024 * 1024
"""Bytes of JSON input kept for further turns, half for one tenant; decoded, up to four times as much."""


@dataclass(eq=False, slots=True)
class _SharedBytes:
    """Bytes that the responses of one request share; they are given back with the last response."""

    responses: int
    """The number of responses that share the bytes and have not ended."""
    images: int
    inputs: int


class UnfinishedResponses:
    """The unfinished responses of this process, by id. Thread-safe. One is counted from before its row exists
    until its end is committed, also while it waits for a tool. The total is the engine's own limit of
    requests, so overload is known before a response is accepted.
    """

    def __init__(self, *, total: int = UNBOUNDED, per_tenant: int | None = None) -> None:
        """`per_tenant` defaults to half of the total on a server with keys, and to the total without."""
        self.total = total
        self._per_tenant = per_tenant
        self._lock = threading.Lock()
        self._images = SharedLimit(
            "bytes of pictures in unfinished responses",
            total=MAX_PROMPT_IMAGE_BYTES,
            per_tenant=MAX_PROMPT_IMAGE_BYTES // 2,
        )
        self._inputs = SharedLimit(
            "bytes of input of unfinished responses that may have further turns",
            total=MAX_INPUT_BYTES,
            per_tenant=MAX_INPUT_BYTES // 2,
        )
        self._shared: dict[UUID, _SharedBytes] = {}
        self._tenants: dict[UUID, str] = {}
        self._counts: Counter[str] = Counter()

    def share(self, caller: Caller) -> int:
        return tenant_share(caller, caller.settings.max_unfinished, self._per_tenant, self.total)

    def check(self, caller: Caller, count: int) -> None:
        """Raises TooManyRequests or Overloaded if `reserve` would; InvalidRequest if `count` never fits."""
        with self._lock:
            self._check(caller, count)

    def reserve(
        self, caller: Caller, responses: Sequence[UUID], image_bytes: int = 0, input_bytes: int = 0
    ) -> None:
        """Count these responses, or none of them, and the bytes that they share until the last one's end.

        `image_bytes` are of pictures, `input_bytes` of the input that is kept for further turns. Raises as
        `check` does.
        """
        shared = _SharedBytes(len(responses), image_bytes, input_bytes)
        with self._lock:
            self._check(caller, len(responses))
            if image_bytes or input_bytes:
                self._acquire(caller.tenant, shared)
                self._shared.update(dict.fromkeys(responses, shared))
            for response in responses:
                self._add(response, caller.tenant)

    def add(self, response: UUID, tenant: str) -> None:
        """Count a response regardless of the limits; idempotent."""
        with self._lock:
            self._add(response, tenant)

    def discard(self, response: UUID) -> None:
        """Stop counting a response that has ended or was released; idempotent."""
        with self._lock:
            tenant = self._tenants.pop(response, None)
            if tenant is None:
                return
            shared = self._shared.pop(response, None)
            if shared is not None:
                self._release(tenant, shared)
            self._counts[tenant] -= 1
            if not self._counts[tenant]:
                del self._counts[tenant]

    def full_tenants(self) -> set[str]:
        """Tenants at the limit of the setting; empty if only the default limits them.

        The claimer skips their background responses. It claims only while there is room, and fairly, so that
        the default limit is not needed there.
        """
        most = self._per_tenant
        with self._lock:
            return {tenant for tenant, count in self._counts.items() if most is not None and count >= most}

    def __contains__(self, response: UUID) -> bool:
        return response in self._tenants

    def __len__(self) -> int:
        return len(self._tenants)

    def _acquire(self, tenant: str, shared: _SharedBytes) -> None:
        self._images.acquire(tenant, shared.images)
        try:
            self._inputs.acquire(tenant, shared.inputs)
        except BaseException:
            self._images.release(tenant, shared.images)
            raise

    def _release(self, tenant: str, shared: _SharedBytes) -> None:
        shared.responses -= 1
        if not shared.responses:
            self._images.release(tenant, shared.images)
            self._inputs.release(tenant, shared.inputs)

    def _add(self, response: UUID, tenant: str) -> None:
        if response not in self._tenants:
            self._tenants[response] = tenant
            self._counts[tenant] += 1

    def _check(self, caller: Caller, count: int) -> None:
        share = self.share(caller)
        if count > share:
            raise invalid_value(
                f"A request may ask for at most {share} answers at a time here, not {count}.", "n"
            )
        if share < self.total and self._counts.get(caller.tenant, 0) + count > share:
            raise TooManyRequests(
                f"You may have {share} unfinished responses here at a time; try again later.",
                limit=UNFINISHED,
            )
        if len(self._tenants) + count > self.total:
            raise Overloaded(
                "The server has more requests than it can take; try again later.", limit=UNFINISHED
            )


DEFAULT_TENANT_BYTES: Final = 100 * 1024**3
"""The limit of a tenant with a key. The tenant of a server without keys has the whole disk."""
FRESH_SECONDS: Final = 2.0
_MAX_TENANTS: Final = 4096
QUEUED: Final = "queued background responses"


class StorageQuota:
    """Stored bytes per tenant, read from the database at most once in `FRESH_SECONDS`. Thread-safe."""

    def __init__(
        self, database: Database, per_tenant: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`per_tenant` is the setting in bytes; None for the default."""
        self._database = database
        self._per_tenant = per_tenant
        self._clock = clock
        self._lock = threading.Lock()
        self._read: dict[str, tuple[float, int]] = {}

    def share(self, caller: Caller) -> int | None:
        """The quota of the caller's tenant in bytes, None for no quota."""
        own = caller.settings.max_stored_bytes
        most = self._per_tenant if own is None else own
        if most is not None:
            return most
        return DEFAULT_TENANT_BYTES if caller.key_id is not None else None

    def check(self, caller: Caller) -> None:
        """Raises StorageQuotaExceeded if this caller's tenant may store no more, or DatabaseError."""
        share = self.share(caller)
        if share is not None and self._stored(caller.tenant) >= share:
            raise StorageQuotaExceeded(share)

    def _stored(self, tenant: str) -> int:
        now = self._clock()
        with self._lock:
            read_at, size = self._read.get(tenant, (None, 0))
            if read_at is not None and now - read_at < FRESH_SECONDS:
                return size
            if read_at is not None:  # other threads use the old sum while this one reads
                self._read[tenant] = (now, size)
        size = self._database.autocommit(lambda connection: storage_usage.total(connection, tenant))
        with self._lock:
            if len(self._read) >= _MAX_TENANTS:
                self._read.clear()
            self._read[tenant] = (now, size)
        return size


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """At most `total` queued background responses, and `per_tenant` of one tenant."""

    total: int
    per_tenant: int | None

    def share(self, caller: Caller) -> int:
        return tenant_share(caller, caller.settings.max_queued, self.per_tenant, self.total)

    def check(self, connection: Connection, caller: Caller) -> None:
        """Raises TooManyRequests or Overloaded if no background response may be added."""
        share = self.share(caller)
        if share < self.total and claims.count_waiting(connection, share, caller.tenant) >= share:
            raise TooManyRequests(
                f"You may have {share} background responses waiting at a time; try again later.", limit=QUEUED
            )
        if claims.count_waiting(connection, self.total) >= self.total:
            raise Overloaded("Too many background responses are waiting; try again later.", limit=QUEUED)


MAX_BYTES = 16 * 1024 * 1024
"""Bytes of the stored items that one request reads, history and references, as JSON for the model."""
MAX_ITEMS = 50_000
MAX_IMAGE_BYTES = 32 * 1024 * 1024
"""Bytes of the stored pictures that one request reads."""
MAX_TOTAL_BYTES = 128 * 1024 * 1024
"""Bytes of all requests in preparation here; decoded, up to `DECODED_FACTOR` times as much memory."""
MAX_TENANT_BYTES = 48 * 1024 * 1024
LARGE_READ_BYTES: Final = 1024 * 1024
"""Size of a request's stored items from which on its memory is returned to the system afterwards."""
_TRIMS: Final = 2
"""Returns of free memory after a large read: at the first one its request may still be answered."""
DECODED_FACTOR: Final = 4
"""Bytes of memory for a byte of stored items: an emoji in a text makes each of its characters take four."""

Reserve = Callable[[HistorySize], None]
"""Called with the size of items before they are read. Raises ApiError beyond a limit."""


class HistoryReads:
    """Counts the bytes of history that requests in preparation have read. Thread-safe."""

    def __init__(self) -> None:
        self._bytes = SharedLimit(
            "bytes of history in requests", total=MAX_TOTAL_BYTES, per_tenant=MAX_TENANT_BYTES
        )
        self._trims_due = 0

    @contextmanager
    def for_request(self, tenant: str) -> Iterator["RequestReads"]:
        """The counter of one request; its bytes are released when the block ends."""
        reads = RequestReads(self._bytes, tenant)
        try:
            yield reads
        finally:
            if reads.item_bytes >= LARGE_READ_BYTES:
                self._trims_due = _TRIMS
            reads.start_over()

    def trim_memory(self) -> None:
        """Has the allocator return the freed memory of large histories; called about once a second."""
        if self._trims_due:
            self._trims_due -= 1
            with suppress(OSError, AttributeError):  # of another C library than glibc
                ctypes.CDLL(None).malloc_trim(0)


class RequestReads:
    def __init__(self, limit: SharedLimit, tenant: str) -> None:
        self._limit = limit
        self._tenant = tenant
        self._count = 0
        """Bytes of items and pictures."""
        self.item_bytes = 0
        """Bytes of the items read so far, as JSON, without pictures."""

    def start_over(self) -> None:
        """Release the bytes counted so far, before a transaction is repeated."""
        if self._count:
            self._limit.release(self._tenant, self._count)
            self._count = self.item_bytes = 0

    def reserve(self, size: HistorySize) -> None:
        """Counts a read. Raises InvalidRequest, TooManyRequests or Overloaded at its limits."""
        check_history_size(self.item_bytes + size.bytes, size.items)
        self._acquire(size.bytes)
        self.item_bytes += size.bytes

    def reserve_images(self, size: int) -> None:
        """Count the bytes of pictures before they are read. Raises as `reserve` does."""
        if size > MAX_IMAGE_BYTES:
            raise InvalidRequest(
                f"{OVER_THE_LIMIT}: the pictures of what this request goes on from are more than the "
                f"{MAX_IMAGE_BYTES} bytes that are read for one response: begin anew.",
                param="input",
                code="context_length_exceeded",
            )
        self._acquire(size)

    def _acquire(self, size: int) -> None:
        self._limit.acquire(self._tenant, size)
        self._count += size


def check_history_size(size: int, items: int = 0) -> None:
    """Raises InvalidRequest for more bytes or items than one request may read."""
    if size > MAX_BYTES or items > MAX_ITEMS:
        raise InvalidRequest(
            f"{OVER_THE_LIMIT}: what this request goes on from or refers to is more than the "
            f"{MAX_BYTES} bytes or {MAX_ITEMS} items that are read for one response: begin anew, or compact "
            "the conversation.",
            param="input",
            code="context_length_exceeded",
        )


def unbounded(_size: HistorySize) -> None:
    """A `Reserve` without limits, for a response that was accepted before."""
