"""How much room the embedded database's disk has left.

Postgres does not survive a full disk: the first write that needs a new piece of WAL ends it, a DELETE as well
as an INSERT, and it cannot start before there is room. So new work and purges stop while some is left. The
disk of an external database cannot be seen from here.
"""

import os
from dataclasses import dataclass
from pathlib import Path

SMALL_SHARE = 0.1
LARGE_DISK_RESERVE = 2 * 1024**3


@dataclass(frozen=True, slots=True)
class Shortage:
    """Less is free than must be; both in bytes."""

    free: int
    reserve: int


def shortage_of(free: int, total: int, reserve: int | None) -> Shortage | None:
    """Whether a disk with so many free bytes is too full. Pure."""
    wanted = min(int(total * SMALL_SHARE), LARGE_DISK_RESERVE) if reserve is None else reserve
    return Shortage(free, wanted) if free < wanted else None


class Disk:
    """The disk that a directory is on, or, without one, a disk that is never short."""

    def __init__(self, directory: Path | None, reserve: int | None) -> None:
        self._directory = directory
        self._reserve = reserve

    def shortage(self) -> Shortage | None:
        """Asks the kernel, which takes microseconds. Any thread."""
        if self._directory is None:
            return None
        found = os.statvfs(self._directory)
        return shortage_of(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize, self._reserve)
