"""Limits on the stored history that requests read: bytes and items of one, of a tenant and of this process.

Sizes are read from the database before contents.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from server.errors import InvalidRequest
from server.limits import SharedLimit
from server.prompting.prompt_limits import OVER_THE_LIMIT
from server.store.content.stored_items import HistorySize

MAX_BYTES = 16 * 1024 * 1024
"""Of the stored items that one request reads: its history and its item references, as JSON for the model."""
MAX_ITEMS = 50_000
MAX_IMAGE_BYTES = 32 * 1024 * 1024
"""Of the stored pictures that one request reads."""
MAX_TOTAL_BYTES = 128 * 1024 * 1024
"""Of all requests in preparation in this process; decoded items take about four times the memory."""
MAX_TENANT_BYTES = 48 * 1024 * 1024

Reserve = Callable[[HistorySize], None]
"""Called with the size of items before they are read. Raises ApiError beyond a limit."""


class HistoryReads:
    """Counts the bytes of history that requests in preparation have read. Thread-safe."""

    def __init__(self) -> None:
        self._bytes = SharedLimit(
            "bytes of history in requests", total=MAX_TOTAL_BYTES, per_tenant=MAX_TENANT_BYTES
        )

    @contextmanager
    def for_request(self, tenant: str) -> Iterator["RequestReads"]:
        """The counter of one request; its bytes are released when the block ends."""
        reads = RequestReads(self._bytes, tenant)
        try:
            yield reads
        finally:
            reads.start_over()


class RequestReads:
    """The bytes of history that one request has read."""

    def __init__(self, limit: SharedLimit, tenant: str) -> None:
        self._limit = limit
        self._tenant = tenant
        self._count = 0
        """Of items and pictures."""
        self._items = 0

    def start_over(self) -> None:
        """Release the bytes counted so far, before a transaction is repeated."""
        if self._count:
            self._limit.release(self._tenant, self._count)
            self._count = self._items = 0

    def reserve(self, size: HistorySize) -> None:
        """Count a read. Raises InvalidRequest at the request's limit, TooManyRequests or Overloaded at the
        limits of its tenant and of the process.
        """
        check_history_size(self._items + size.bytes, size.items)
        self._acquire(size.bytes)
        self._items += size.bytes

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
