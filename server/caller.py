"""The authenticated caller of a request."""

from dataclasses import dataclass

DEFAULT_TENANT = "default"
"""The tenant of all requests while no API key exists."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The tenant and API key of a request; `key_id` is None while no API key exists."""

    tenant: str
    key_id: str | None
    priority_floor: int = 0
    """The most urgent priority of the key's requests; a lower number is more urgent."""

    @property
    def actor(self) -> str:
        """The caller in the audit trail."""
        return f"key:{self.key_id}" if self.key_id is not None else "anonymous"
