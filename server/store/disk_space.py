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
class Shortage:
    """Free space below the reserve, both in bytes."""

    free: int
    reserve: int


@dataclass(frozen=True, slots=True)
class Space:
    """Bytes that are free, and those that must be."""

    free: int
    reserve: int


def reserve_of(total: int, reserve: int | None) -> int:
    """The bytes that must be free on a disk of `total` bytes; `reserve` is the setting. Pure."""
    return min(int(total * SMALL_SHARE), LARGE_DISK_RESERVE) if reserve is None else reserve


def shortage_of(free: int, total: int, reserve: int | None) -> Shortage | None:
    """The shortage of a disk with `free` of `total` bytes; None if there is none. Pure."""
    reserved = reserve_of(total, reserve)
    return Shortage(free, reserved) if free < reserved else None


class Disk:
    """The disk of a directory; without a directory, a disk without shortage."""

    def __init__(self, directory: Path | None, reserve: int | None) -> None:
        self._directory = directory
        self._reserve = reserve

    def space(self) -> Space | None:
        """Free bytes and the reserve, by statvfs; None for a disk that this process does not see."""
        if self._directory is None:
            return None
        found = os.statvfs(self._directory)
        total = found.f_blocks * found.f_frsize
        return Space(found.f_bavail * found.f_frsize, reserve_of(total, self._reserve))

    def shortage(self) -> Shortage | None:
        """The current shortage, by statvfs. Thread-safe."""
        if self._directory is None:
            return None
        found = os.statvfs(self._directory)
        return shortage_of(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize, self._reserve)
