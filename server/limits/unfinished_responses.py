"""`UnfinishedResponses`: the responses of this process by tenant, and the memory of their inputs."""

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from server.caller import Caller
from server.errors import InvalidRequest, Overloaded, TooManyRequests
from server.limits.shared_limit import UNBOUNDED, SharedLimit, tenant_share

UNFINISHED = "unfinished responses"
MAX_IMAGE_BYTES = 1024**3
"""Bytes of the pictures in prompts of unfinished responses, as PNG; one tenant may use half."""
MAX_INPUT_BYTES = 256 * 1024 * 1024
"""Bytes of JSON input kept for further turns, half for one tenant; decoded, up to four times as much."""


@dataclass(eq=False, slots=True)
class _SharedBytes:
    """Bytes that the responses of one request share; they are given back with the last response."""

    responses: int
    """Those that have not ended."""
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
            total=MAX_IMAGE_BYTES,
            per_tenant=MAX_IMAGE_BYTES // 2,
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
            raise InvalidRequest(
                f"A request may ask for at most {share} answers at a time here, not {count}.",
                param="n",
                code="invalid_value",
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
