"""The event log: append, read, cache."""
