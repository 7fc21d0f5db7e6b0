"""`RemoteConfig`: which engine servers are called, and the bounds of calling them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteConfig:
    """Settings of a `RemoteEngine`."""

    urls: str
    """Where the servers are, as `discovery` reads it."""
    api_key: str | None = None
    ca_file: Path | None = None
    """Certificates that a server's own must be signed by; None is the machine's authorities."""
    max_running: int = 256
    """Calls at a time, on all servers together."""
    max_waiting: int = 256
    max_per_key: int | None = None
    silence_seconds: float = 300.0
    """A call whose server says nothing for this long goes on at another one."""
    outage_seconds: float = 300.0
    """How long a request waits while no server can take it; then it fails."""
    start_seconds: float = 1800.0
    """How long the start waits for a first server, which may be loading its model."""
    trace_parent_of: Callable[[str], str | None] = lambda _request_id: None
    """The header `traceparent` of calls for a request, by its id; None without a trace."""
