"""Batched generation over token ids: no HTTP, no JSON, no SQL, no tenants."""
