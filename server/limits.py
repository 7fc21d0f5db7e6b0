"""Counters of what is in use at a time, in all and per tenant: `SharedLimit`, `UnfinishedResponses`.

Every kind of work that a client can start (handlers, streams, tokenizing, tool calls, body bytes) has a
`SharedLimit`. Neither counter ever waits. A tenant at its own limit gets 429, and only a full server
answers 503. `docs/limits.md` lists every limit.
"""

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from uuid import UUID

from server.errors import InvalidRequest, Overloaded, TooManyRequests


class SharedLimit:
    """At most `total` units in use, and at most `per_tenant` of them by one tenant. Thread-safe.

    The tenant's limit is checked first.
    """

    def __init__(self, what: str, *, total: int, per_tenant: int) -> None:
        """`what` is the plural noun of the error's sentence: "open streams", "bytes of request bodies"."""
        self.what = what
        self.total = total
        self.per_tenant = min(per_tenant, total)
        self._lock = threading.Lock()
        self._used = 0
        self._by_tenant: Counter[str] = Counter()

    def acquire(self, tenant: str, amount: int = 1) -> None:
        """Take `amount` units, or none. Raises TooManyRequests at the tenant's bound, else Overloaded."""
        with self._lock:
            if self._by_tenant[tenant] + amount > self.per_tenant:
                self._forget_if_unused(tenant)
                raise TooManyRequests(
                    f"You may have {self.per_tenant} {self.what} at a time; try again later.", limit=self.what
                )
            if self._used + amount > self.total:
                self._forget_if_unused(tenant)
                raise Overloaded(
                    f"The server has {self.total} {self.what}, its limit; try again later.", limit=self.what
                )
            self._used += amount
            self._by_tenant[tenant] += amount

    def release(self, tenant: str, amount: int = 1) -> None:
        """Return units taken by `acquire`."""
        with self._lock:
            self._used -= amount
            self._by_tenant[tenant] -= amount
            self._forget_if_unused(tenant)

    @contextmanager
    def hold(self, tenant: str, amount: int = 1) -> Iterator[None]:
        """`acquire` for the duration of the block. Raises as it does."""
        self.acquire(tenant, amount)
        try:
            yield
        finally:
            self.release(tenant, amount)

    def used(self, tenant: str | None = None) -> int:
        """The units in use, of one tenant or in all."""
        with self._lock:
            return self._used if tenant is None else self._by_tenant.get(tenant, 0)

    def _forget_if_unused(self, tenant: str) -> None:
        if self._by_tenant[tenant] <= 0:
            del self._by_tenant[tenant]


UNBOUNDED = 2**31
UNFINISHED = "unfinished responses"
MAX_IMAGE_BYTES = 1024**3
"""Of the pictures in prompts of unfinished responses, as PNG; one tenant may use half."""


class UnfinishedResponses:
    """The unfinished responses of this process, by id. Thread-safe.

    A response is counted from before its row exists until its end is committed, also while it waits for a
    tool. The total is the engine's own limit of running and waiting requests, and a response has one engine
    request at a time. So the engine has room for each counted response, and overload is known before a
    response is accepted.
    """

    def __init__(self, *, total: int = UNBOUNDED, per_tenant: int | None = None) -> None:
        """`per_tenant` defaults to half of the total on a server with keys, and to the total without."""
        self.total = total
        self._per_tenant = per_tenant
        self._lock = threading.Lock()
        self._images = SharedLimit(
            "bytes of pictures in unfinished responses",
            total=MAX_IMAGE_BYTES,
            per_tenant=MAX_IMAGE_BYTES // 2,
        )
        self._image_bytes: dict[UUID, int] = {}
        self._tenants: dict[UUID, str] = {}
        self._counts: Counter[str] = Counter()

    def share(self, key_id: str | None) -> int:
        """The limit of one tenant. `key_id` is None on a server without keys."""
        if self._per_tenant is not None:
            return min(self._per_tenant, self.total)
        return self.total if key_id is None else max(1, self.total // 2)

    def check(self, tenant: str, key_id: str | None, count: int) -> None:
        """Raises TooManyRequests or Overloaded if `reserve` would; InvalidRequest if `count` never fits."""
        with self._lock:
            self._check(tenant, key_id, count)

    def reserve(
        self, tenant: str, key_id: str | None, responses: Sequence[UUID], image_bytes: int = 0
    ) -> None:
        """Count these responses, or none of them, and the bytes of pictures that they share.

        Raises as `check` does.
        """
        with self._lock:
            self._check(tenant, key_id, len(responses))
            if image_bytes:
                self._images.acquire(tenant, image_bytes)
                self._image_bytes[responses[0]] = image_bytes
            for response in responses:
                self._add(response, tenant)

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
            self._images.release(tenant, self._image_bytes.pop(response, 0))
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

    def _add(self, response: UUID, tenant: str) -> None:
        if response not in self._tenants:
            self._tenants[response] = tenant
            self._counts[tenant] += 1

    def _check(self, tenant: str, key_id: str | None, count: int) -> None:
        share = self.share(key_id)
        if count > share:
            raise InvalidRequest(
                f"A request may ask for at most {share} answers at a time here, not {count}.",
                param="n",
                code="invalid_value",
            )
        if share < self.total and self._counts.get(tenant, 0) + count > share:
            raise TooManyRequests(
                f"You may have {share} unfinished responses here at a time; try again later.",
                limit=UNFINISHED,
            )
        if len(self._tenants) + count > self.total:
            raise Overloaded(
                "The server has more requests than it can take; try again later.", limit=UNFINISHED
            )
