"""Limits on queued background responses in the database, in all and per tenant.

The accept transaction counts before it adds its row. Concurrent transactions do not see each other's rows, so
a limit may be exceeded by as many rows as there are handler threads.
"""

from dataclasses import dataclass

from server.caller import Caller
from server.configuration.settings import Config
from server.errors import Overloaded, TooManyRequests
from server.store.cluster import claims
from server.store.database import Connection


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """At most `total` queued responses, and `per_tenant` of one tenant."""

    total: int
    per_tenant: int | None

    @staticmethod
    def from_config(config: Config) -> "QueueLimits":
        """The limits of the settings."""
        return QueueLimits(config.max_queued, config.max_queued_of_tenant)

    def share(self, caller: Caller) -> int:
        """The caller's limit. A server without keys has one tenant, whose limit is the total."""
        if self.per_tenant is not None:
            return min(self.per_tenant, self.total)
        return self.total if caller.key_id is None else max(1, self.total // 2)

    def check(self, connection: Connection, caller: Caller) -> None:
        """Raises TooManyRequests or Overloaded if no background response may be added."""
        share = self.share(caller)
        if share < self.total and claims.waiting_of(connection, caller.tenant, share) >= share:
            raise TooManyRequests(
                f"You may have {share} background responses waiting at a time; try again later."
            )
        if claims.waiting(connection, self.total) >= self.total:
            raise Overloaded("Too many background responses are waiting; try again later.")
