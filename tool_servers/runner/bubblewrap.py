"""A sandbox's resource limits, and bubblewrap's command line for it. Pure.

Code in the sandbox sees a read-only system and one writable folder in memory. It has no network, no
environment variables of the host, no processes but its own, and no user of the host.
"""

from collections.abc import Iterable, Sequence
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


HOME = "/mnt/data"
"""The folder for files that gpt-oss's system prompt names."""
_LINKS = ("bin", "lib", "lib32", "lib64", "sbin")
_SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime")
_ENVIRONMENT = {
    "HOME": HOME,
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "TMPDIR": "/tmp",  # noqa: S108 - the sandbox's
    "MPLBACKEND": "Agg",
    "MPLCONFIGDIR": "/tmp",  # noqa: S108
    # One thread of arithmetic a process: each counts as a process, and holds memory.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


def command(
    limits: SandboxLimits,
    *,
    folders: Iterable[str],
    links: Sequence[str],
    seccomp: int,
    program: Sequence[str],
) -> list[str]:
    """The command. `folders` are mounted read-only beside /usr, `links` are symbolic links at the root into
    /usr, `seccomp` is the descriptor of the filter.
    """
    words = [
        "bwrap",
        "--unshare-user",
        "--disable-userns",
        "--unshare-all",
        "--die-with-parent",
        "--new-session",
    ]
    words += ["--uid", "1000", "--gid", "1000", "--hostname", "sandbox", "--cap-drop", "ALL", "--clearenv"]
    for name, value in _ENVIRONMENT.items():
        words += ["--setenv", name, value]
    words += ["--ro-bind", "/usr", "/usr"]
    for link in links:
        words += ["--symlink", f"usr/{link}", f"/{link}"]
    for path in _SYSTEM_FILES:
        words += ["--ro-bind-try", path, path]
    for folder in folders:
        words += ["--ro-bind", folder, folder]
    words += ["--proc", "/proc", "--dev", "/dev"]
    # Whatever is writable is a file system in memory, of a size; all others cannot be written.
    words += ["--size", str(limits.disk), "--tmpfs", HOME, "--symlink", HOME.lstrip("/"), "/tmp"]  # noqa: S108
    words += ["--size", str(limits.disk), "--tmpfs", "/dev/shm", "--remount-ro", "/dev", "--remount-ro", "/"]  # noqa: S108
    words += ["--chdir", HOME, "--seccomp", str(seccomp), "--", *program]
    return words


def root_links(present: Iterable[str]) -> list[str]:
    """Return the entries of the root that are links into /usr."""
    there = set(present)
    return [name for name in _LINKS if name in there]
