"""From a valid request to an accepted response: idempotency, capacity, the commit, the engine."""
