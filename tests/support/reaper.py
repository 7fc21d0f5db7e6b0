"""Kills what a pytest process has started once that process is gone, however it went. Linux only.

Run as a program by `tests.fix_reaper`, with `python -I -S`, so it imports the standard library alone:
MARKER OWNER MAKE. What the owner starts has the variable MARKER in its environment, and hands it on. The end
of the process OWNER, or of MAKE where that is not 0, is seen through its pidfd, which no fork holds open.

An embedded Postgres is left to its watcher, which stops it when its owner is gone.
"""

import contextlib
import os
import select
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

SPARED = (b"embedded_postgres/watcher.py", b"tests/support/reaper.py")
FOLDER_PREFIX = "holdfast-test-"
"""Of the folders for a Postgres; the id of the process that made it follows."""
PAUSE_S = 0.05
ROUNDS = 400


def main(arguments: list[str]) -> None:
    marker, owner, make = arguments[0].encode() + b"=", int(arguments[1]), int(arguments[2])
    watched = select.poll()
    try:
        owner_fd = os.pidfd_open(owner)
        watched.register(owner_fd, select.POLLIN)
        if make:
            watched.register(os.pidfd_open(make), select.POLLIN)
        watched.poll()
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(owner_fd, signal.SIGKILL)
    except ProcessLookupError:
        pass  # one of them had ended before it was watched
    for _ in range(ROUNDS):
        left, folders = started_by(marker), folders_of(owner)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for folder in folders:
            if not left:
                shutil.rmtree(folder, ignore_errors=True)  # again, while its Postgres shuts down
        if not left and not folders:
            return
        time.sleep(PAUSE_S)


def folders_of(owner: int) -> list[Path]:
    """The folders for a Postgres that the process has made and not removed."""
    parents = (Path("/dev/shm"), Path(tempfile.gettempdir()))
    return [folder for parent in parents for folder in parent.glob(f"{FOLDER_PREFIX}{owner}-*")]


def started_by(marker: bytes) -> set[int]:
    """The processes with the marker and their descendants, without watchers, other reapers, and theirs."""
    parents: dict[int, int] = {}
    marked: set[int] = set()
    spared: set[int] = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        pid = int(entry.name)
        with contextlib.suppress(OSError):
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            if state == "Z":
                continue
            parents[pid] = int(parent)
            if any(program in (entry / "cmdline").read_bytes() for program in SPARED):
                spared.add(pid)
            if marker in (entry / "environ").read_bytes():
                marked.add(pid)
    return {pid for pid in parents if _descends(pid, marked, parents) and not _descends(pid, spared, parents)}


def _descends(pid: int, ancestors: set[int], parents: dict[int, int]) -> bool:
    """Whether the process, or one that it descends from, is among them."""
    seen: set[int] = set()
    while pid in parents and pid not in seen:
        if pid in ancestors:
            return True
        seen.add(pid)
        pid = parents[pid]
    return False


if __name__ == "__main__":
    main(sys.argv[1:])
