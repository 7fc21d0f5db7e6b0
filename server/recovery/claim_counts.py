"""`ClaimCounts`: the responses that the claimer has claimed, for the metrics."""

from collections import Counter
from dataclasses import dataclass, field

from server.store.content.responses import StoredResponse


@dataclass(slots=True)
class ClaimCounts:
    """Responses that this replica has claimed. The claimer's thread writes."""

    new: int = 0
    """That no replica had begun."""
    after_death: int = 0
    """That another replica, or an engine, had begun before it died."""
    handed_over: int = 0
    """That another replica had begun and released."""
    given_up: Counter[bool] = field(default_factory=Counter)
    """That ended as failed because their replica died, by whether they were background responses."""

    def count_start(self, stored: StoredResponse) -> None:
        """Counts one that goes on here."""
        if stored.deaths:
            self.after_death += 1
        elif stored.attempt > 1:
            self.handed_over += 1
        else:
            self.new += 1
