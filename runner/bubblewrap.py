"""What a sandbox is made of, as bubblewrap's command line. Pure.

The code finds a system that it can read and not change, one folder of its own in memory, and nobody else: no
network, no processes but its own, no environment, no user of this machine.
"""

from collections.abc import Iterable, Sequence

from runner.limits import Limits

HOME = "/mnt/data"
"""Where gpt-oss is told that its files are."""
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
    limits: Limits, *, folders: Iterable[str], links: Sequence[str], seccomp: int, program: Sequence[str]
) -> list[str]:
    """`folders` can be read beside /usr, `links` at the root lead into it, `seccomp` is a descriptor."""
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
    """Of what stands at the root of this machine, what leads into /usr."""
    there = set(present)
    return [name for name in _LINKS if name in there]
