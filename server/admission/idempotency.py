"""Idempotency keys: a request that is sent again gets the responses that its first attempt created.

A key is claimed in the accept transaction; of responses without a row by `KeyClaims`, which also frees those
of which nothing began. A commit that was not confirmed until its client was told to try again may have
happened all the same. The key then names a response that nobody runs. Only the process that made its id knows
that: for all that others see, it may be running there. So this process frees the key, as soon as the database
answers again.
"""

import threading
from collections.abc import Container
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from server.admission.prepare_runs import IdempotencyKey, NewRun
from server.caller import Caller
from server.delivery.hub import Channel, Hub
from server.errors import Conflict, InvalidRequest
from server.hosted_tools.approved_calls import spend_approvals
from server.protocol.ids import choice_id
from server.store.content import idempotency_keys, responses
from server.store.content.idempotency_keys import KeyUse
from server.store.content.responses import StoredResponse
from server.store.database import Connection, Database

MAX_KEPT = 4096
"""Uses of keys that are kept; of more the oldest are forgotten, whose keys are free after a day."""
_LOOKS = 10
"""How often the database is asked for a key, until its claim counts as rolled back. The commit may still be
under way when the database answers again."""


class KeyTaken(Exception):
    """Another request claimed the same idempotency key in the meantime."""


@dataclass(slots=True)
class _Unused:
    use: KeyUse
    looks: int = _LOOKS


class KeyClaims:
    """The keys that this process claims for responses without a row. Thread-safe."""

    def __init__(self, database: Database, replica: UUID) -> None:
        self._database = database
        self._replica = replica
        self._lock = threading.Lock()
        self._unused: dict[UUID, _Unused] = {}
        """Claims that were given up, by the response that did not begin, the oldest first."""

    def claim(self, new: NewRun) -> None:
        """Claims a response's key, if any, and its approvals. Raises KeyTaken, Conflict or DatabaseError."""

        def work(connection: Connection) -> None:
            claim_key(connection, new, self._replica)
            spend_approvals(connection, new.caller.tenant, new.approvals, new.response)

        try:
            self._database.retry(work)
        except KeyTaken:
            raise
        except Exception:
            self.give_up(new)
            raise

    def give_up(self, new: NewRun) -> None:
        """The response does not begin: its key is for another attempt, also if the claim was committed."""
        if new.idempotency_key is None or new.stored:
            return
        use = KeyUse(new.caller.tenant, new.idempotency_key.key, new.response)
        with self._lock:
            self._unused[new.response] = _Unused(use)
            if len(self._unused) > MAX_KEPT:
                del self._unused[next(iter(self._unused))]

    def __contains__(self, response: object) -> bool:
        """Whether the response has a claim that was given up here, and so is run by nobody."""
        return response in self._unused

    def free(self) -> None:
        """Free the keys of responses that did not begin. After a DatabaseError the next call tries again."""
        with self._lock:
            claims = list(self._unused.values())
        if not claims:
            return
        with self._database.begin() as connection:
            freed = idempotency_keys.free(connection, [unused.use for unused in claims])
        with self._lock:
            for unused in claims:
                unused.looks -= 1
                if unused.use.response_id in freed or unused.looks <= 0:
                    self._unused.pop(unused.use.response_id, None)


def claim_key(connection: Connection, new: NewRun, replica: UUID | None = None) -> None:
    """Claim the idempotency key, if there is one, for `replica` if there is no row. Raises KeyTaken."""
    if (key := new.idempotency_key) is None:
        return
    use = (new.caller.tenant, key.key, key.digest, new.response)
    if not idempotency_keys.claim(connection, *use, replica):
        raise KeyTaken


def find_previous_attempt(
    database: Database,
    hub: Hub,
    caller: Caller,
    key: IdempotencyKey,
    count: int,
    *,
    not_begun: Container[UUID] = (),
) -> list[tuple[UUID, Channel]] | None:
    """The `count` responses of an earlier attempt, with their channels; None if this is the first attempt.

    Also None if the attempt's responses were lost with a replica, or are in `not_begun` because nothing began
    after the key was claimed for them: the key is free then. Raises InvalidRequest if the key came with
    another request, Conflict if the responses no longer exist.
    """

    def read(connection: Connection) -> tuple[idempotency_keys.FirstUse | None, StoredResponse | None]:
        first_use = idempotency_keys.find(connection, caller.tenant, key.key)
        stored = responses.get(connection, caller.tenant, first_use.response_id) if first_use else None
        return first_use, stored

    first_use, stored = database.autocommit(read)
    if first_use is None:
        return None
    if first_use.response_id in not_begun:
        use = KeyUse(caller.tenant, key.key, first_use.response_id)
        database.retry(lambda connection: idempotency_keys.free(connection, [use]))
        return None
    if first_use.digest != key.digest:
        raise InvalidRequest(
            "This Idempotency-Key was used for another request; use a new one for each request.",
            param="Idempotency-Key",
            code="idempotency_key_reused",
        )
    ids = [choice_id(first_use.response_id, index) for index in range(count)]
    if stored:
        ends_unread = not stored.background
        return [(response, hub.watch(caller.tenant, response, ends_unread=ends_unread)) for response in ids]
    channels = [(response, hub.running(response)) for response in ids]
    running = [(response, channel) for response, channel in channels if channel is not None]
    if len(running) == count:
        return running
    release_lost = partial(
        idempotency_keys.release_lost, tenant=caller.tenant, key=key.key, response=first_use.response_id
    )
    if database.retry(release_lost):
        return None
    raise Conflict(
        "This request was made before; its response was not stored, or has been deleted.",
        param="Idempotency-Key",
    )
