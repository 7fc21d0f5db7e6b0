"""How much of this machine one sandbox may have."""

from dataclasses import dataclass

MB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """One sandbox's, for all of its processes together unless it is said otherwise."""

    seconds: float = 30.0
    """Of one piece of code, by the clock."""
    memory: int = 512 * MB
    disk: int = 64 * MB
    """Bytes of files, which are in memory, too."""
    files: int = 10_000
    processes: int = 64
    """And threads."""
    output: int = 64 * 1024
    """Bytes that are kept of what one piece of code prints: half from its beginning, half from its end."""
