"""The only SQL: Postgres alone, with the tenant first in every function and every key."""
