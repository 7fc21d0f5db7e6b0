"""How many background responses may wait in the database, in all and of one tenant.

The counts are taken in the transaction that adds the row. Transactions that run at the same time do not see
each other's rows, so the bounds may be passed by as many as the handlers' threads.
"""

from dataclasses import dataclass

from server.caller import Caller
from server.configuration.settings import Config
from server.errors import Overloaded, TooManyRequests
from server.store.cluster import claims
from server.store.database import Connection


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """At most `total` waiting responses, and `per_tenant` of a tenant with a key."""

    total: int
    per_tenant: int | None

    @staticmethod
    def from_config(config: Config) -> "QueueLimits":
        """What these settings allow."""
        return QueueLimits(config.max_queued, config.max_queued_of_tenant)

    def share(self, caller: Caller) -> int:
        """The caller's bound: without a key there is only one tenant, and the total is its share."""
        if self.per_tenant is not None:
            return min(self.per_tenant, self.total)
        return self.total if caller.key_id is None else max(1, self.total // 2)

    def check(self, connection: Connection, caller: Caller) -> None:
        """Raises TooManyRequests or Overloaded if no background response may be added."""
        share = self.share(caller)
        if share < self.total and claims.count_waiting_of_tenant(connection, caller.tenant, share) >= share:
            raise TooManyRequests(
                f"You may have {share} background responses waiting at a time; try again later."
            )
        if claims.count_waiting(connection, self.total) >= self.total:
            raise Overloaded("Too many background responses are waiting; try again later.")
