"""Resource limits of one sandbox."""

from dataclasses import dataclass

MB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Limits for all processes of a sandbox together, except as noted."""

    seconds: float = 30.0
    """Wall-clock time of one cell or command."""
    memory: int = 512 * MB
    disk: int = 64 * MB
    """Bytes of files, which are in memory."""
    files: int = 10_000
    processes: int = 64
    """And threads."""
    output: int = 64 * 1024
    """Bytes of one cell's output that are returned: half from the beginning, half from the end."""
