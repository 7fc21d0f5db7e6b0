"""Bounds that are checked before work is done: concurrency, queues, quotas, sizes, costs."""
