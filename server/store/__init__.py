"""The only SQL: one Postgres dialect, the tenant first in every function and every key."""
