"""The authenticated caller of a request."""

from dataclasses import dataclass

DEFAULT_TENANT = "default"
"""Whose everything is while the server has no key."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose request it is; `key_id` is None while the server has no key."""

    tenant: str
    key_id: str | None
    priority_floor: int = 0
    """The most urgent priority that its requests may have; a lower number is more urgent."""
