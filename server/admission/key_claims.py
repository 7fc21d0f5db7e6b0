"""`KeyClaims`: claims idempotency keys of responses without a row, and frees those of which nothing began.

A commit that was not confirmed until its client was told to try again may have happened all the same. The key
then names a response that nobody runs. Only the process that made its id knows that: for all that others see,
it may be running there. So this process frees the key, as soon as the database answers again.
"""

import threading
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from server.admission.accept import KeyTaken, claim_key
from server.admission.prepare_runs import NewRun
from server.store.content import idempotency_keys
from server.store.content.idempotency_keys import KeyUse
from server.store.database import Database

MAX_KEPT = 4096
"""Uses of keys that are kept; of more the oldest are forgotten, whose keys are free after a day."""
_LOOKS = 10
"""How often the database is asked for a key, until its claim counts as rolled back. The commit may still be
under way when the database answers again."""


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
        """By the response that did not begin, the oldest first."""

    def claim(self, new: NewRun) -> None:
        """Claim the key of a response, if it has one. Raises KeyTaken or DatabaseError."""
        try:
            self._database.retry(partial(claim_key, new=new, replica=self._replica))
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
            asked = list(self._unused.values())
        if not asked:
            return
        with self._database.begin() as connection:
            freed = idempotency_keys.free(connection, [unused.use for unused in asked])
        with self._lock:
            for unused in asked:
                unused.looks -= 1
                if unused.use.response_id in freed or unused.looks <= 0:
                    self._unused.pop(unused.use.response_id, None)
