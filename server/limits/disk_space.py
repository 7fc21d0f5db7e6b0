"""Free space on the embedded database's disk.

Postgres stops when it cannot write WAL, for a DELETE as well as for an INSERT, and does not start again
before there is space. So new work and purges stop while a reserve is left. The disk of an external database
is not visible to this process.
"""

import os
from dataclasses import dataclass
from pathlib import Path

SMALL_SHARE = 0.1
LARGE_DISK_RESERVE = 2 * 1024**3


@dataclass(frozen=True, slots=True)
class Space:
    """Bytes that are free on a disk, and those that must be."""

    free: int
    reserve: int

    @property
    def is_short(self) -> bool:
        return self.free < self.reserve


def space_of(free: int, total: int, reserve: int | None) -> Space:
    """The space of a disk with `free` of `total` bytes; `reserve` is the setting. Pure."""
    small = min(int(total * SMALL_SHARE), LARGE_DISK_RESERVE)
    return Space(free, small if reserve is None else reserve)


class Disk:
    """The disk of a directory; without a directory, a disk without shortage."""

    def __init__(self, directory: Path | None, reserve: int | None) -> None:
        self._directory = directory
        self._reserve = reserve

    def space(self) -> Space | None:
        """Free bytes and the reserve, by statvfs; None for a disk that this process does not see."""
        if self._directory is None:
            return None
        disk = os.statvfs(self._directory)
        return space_of(disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize, self._reserve)

    def shortage(self) -> Space | None:
        """The current space if that is short, by statvfs. Thread-safe."""
        space = self.space()
        return space if space is not None and space.is_short else None
