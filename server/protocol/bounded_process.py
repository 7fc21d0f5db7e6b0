"""`run`: a worker's answer to untrusted bytes, made in a process with bounds and nothing within its reach.
The process is this file, run as `python -I bounded_process.py WORKER SECONDS MEMORY BOUND...`, with the
standard library alone. The worker is a file with the functions `prepare` and `answer`. Before `answer` the
process gives up for good, for which it needs no privilege: system calls but those of computing and reading
(seccomp), files but those of Python and its libraries (Landlock), and new privileges.
"""

import ctypes
import os
import resource
import runpy
import struct
import subprocess
import sys
from pathlib import Path

CPU_SECONDS = 10
WALL_SECONDS = 30.0
"""Time limit on a busy machine; `CPU_SECONDS` limits the work."""

_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
# Numbers on x86-64 and on aarch64, of the kernel's own headers; None where there is no such call.
_ALLOWED: dict[str, tuple[int, int | None]] = {
    "access": (21, None), "brk": (12, 214), "clock_getres": (229, 114), "clock_gettime": (228, 113),
    "clock_nanosleep": (230, 115), "close": (3, 57), "dup": (32, 23), "exit": (60, 93),
    "exit_group": (231, 94), "faccessat": (269, 48), "faccessat2": (439, 439), "fcntl": (72, 25),
    "fstat": (5, 80), "futex": (202, 98), "getcwd": (79, 17), "getdents64": (217, 61),
    "getegid": (108, 177), "geteuid": (107, 175), "getgid": (104, 176), "getpid": (39, 172),
    "getrandom": (318, 278), "getrlimit": (97, 163), "getrusage": (98, 165), "gettid": (186, 178),
    "gettimeofday": (96, 169), "getuid": (102, 174), "lseek": (8, 62), "lstat": (6, None),
    "madvise": (28, 233), "mmap": (9, 222), "mprotect": (10, 226), "mremap": (25, 216), "munmap": (11, 215),
    "nanosleep": (35, 101), "newfstatat": (262, 79), "open": (2, None), "openat": (257, 56),
    "poll": (7, None), "ppoll": (271, 73), "pread64": (17, 67), "read": (0, 63), "readlink": (89, None),
    "readlinkat": (267, 78), "readv": (19, 65), "restart_syscall": (219, 128), "rseq": (334, 293),
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139),
    "sched_getaffinity": (204, 123), "sched_yield": (24, 124), "set_robust_list": (273, 99),
    "set_tid_address": (218, 96), "sigaltstack": (131, 132), "stat": (4, None), "statx": (332, 291),
    "sysinfo": (99, 179), "times": (100, 153), "uname": (63, 160), "write": (1, 64), "writev": (20, 66),
}  # fmt: skip
_CLONE, _CLONE3 = (56, 220), (435, 435)
_NEW_THREAD = 0x00010000
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_KILL, _EPERM, _ENOSYS, _ALLOW = 0x80000000, 0x00050001, 0x00050026, 0x7FFF0000
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_X32 = 0x40000000
_SET_NO_NEW_PRIVILEGES, _SET_SECCOMP, _GET_SECCOMP, _FILTER = 38, 22, 21, 2
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ONLY_VERSION, _BENEATH_PATH = 1, 1
_READ = 0b1100
"""Landlock's rights to read files and to list folders."""
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share/fonts")
"""Read beside the folders from which Python imports."""

_libc = ctypes.CDLL(None, use_errno=True)


class Exhausted(Exception):
    """The worker takes more CPU time or memory than it may, or crashed."""


def run(worker: Path, content: bytes, memory: int, *bounds: int) -> bytes:
    """The worker's answer to the content within `bounds`, which are its own; `memory` is in bytes.

    Raises Exhausted, or TimeoutError if the machine was too busy.
    """
    limits = map(str, (CPU_SECONDS, memory, *bounds))
    try:
        ran = subprocess.run(
            [sys.executable, "-I", __file__, str(worker), *limits],
            input=content,
            capture_output=True,
            env={},
            timeout=WALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError from None
    if ran.returncode != 0 or not ran.stdout:
        raise Exhausted
    return ran.stdout


def missing() -> str | None:
    """The end of a sentence about what this machine cannot shut off from workers; None if it can all."""
    if os.uname().machine not in _ARCHITECTURES or _libc.prctl(_GET_SECCOMP, 0, 0, 0, 0) < 0:
        return "the network and other programs are not shut off, as the kernel has no seccomp for it"
    if _landlock_version() < 1:
        return "files that the server may read are not shut off, as the kernel has or allows no Landlock"
    return None


def lock_down() -> None:
    """Gives up what `missing` does not name. Raises OSError if the kernel refuses after all."""
    _check(_libc.prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    if _landlock_version() >= 1:
        installed = [path for path in sys.path if path.startswith((sys.prefix, sys.base_prefix))]
        _restrict_files([*installed, *LIBRARIES])
    if os.uname().machine in _ARCHITECTURES and _libc.prctl(_GET_SECCOMP, 0, 0, 0, 0) >= 0:
        _restrict_calls(program(os.uname().machine))


def program(machine: str) -> bytes:
    """The seccomp filter for a machine, named as by `os.uname`; other calls get EPERM. Raises KeyError."""
    architecture, column = _ARCHITECTURES[machine]
    lines = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_IF_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
    ]
    if column == 0:  # the same calls by other numbers
        lines += [(_IF_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _KILL)]
    for numbers in _ALLOWED.values():
        if (number := numbers[column]) is not None:
            lines += [(_IF_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ALLOW)]
    # Without clone3 libc starts threads by clone.
    lines += [(_IF_EQUAL, 0, 1, _CLONE3[column]), (_RETURN, 0, 0, _ENOSYS)]
    lines += [(_IF_EQUAL, 0, 3, _CLONE[column]), (_LOAD, 0, 0, _FIRST_ARGUMENT_AT)]
    lines += [(_IF_ANY_BIT, 0, 1, _NEW_THREAD), (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _EPERM)]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def _landlock_version() -> int:
    version: int = _libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _ONLY_VERSION)
    return version


def _restrict_files(readable: list[str]) -> None:
    version = _landlock_version()
    rights = 0x1FFF | sum(1 << bit for bit, since in ((13, 2), (14, 3), (15, 5)) if version >= since)
    attributes = struct.pack("=Q", rights)
    ruleset = _check(_libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0))
    for folder in filter(os.path.isdir, readable):
        descriptor = os.open(folder, os.O_PATH | os.O_CLOEXEC)
        rule = struct.pack("=Qi", _READ, descriptor)
        _check(_libc.syscall(_ADD_RULE, ruleset, _BENEATH_PATH, rule, 0))
        os.close(descriptor)
    _check(_libc.syscall(_RESTRICT_SELF, ruleset, 0))
    os.close(ruleset)


def _restrict_calls(instructions: bytes) -> None:
    buffer = ctypes.create_string_buffer(instructions, len(instructions))
    # struct sock_fprog: a count, padding, a pointer
    prog = struct.pack("@HxxxxxxQ", len(instructions) // 8, ctypes.addressof(buffer))
    _check(_libc.prctl(_SET_SECCOMP, _FILTER, prog, 0, 0))


def _check(returned: int) -> int:
    if returned < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return returned


def main() -> None:
    worker, seconds, memory, *bounds = sys.argv[1:]
    functions = runpy.run_path(worker)
    for limit, most in (
        (resource.RLIMIT_CPU, int(seconds)),
        (resource.RLIMIT_AS, int(memory)),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (most, most))
    functions["prepare"]()
    content = sys.stdin.buffer.read()
    lock_down()
    sys.stdout.buffer.write(functions["answer"](content, *map(int, bounds)))


if __name__ == "__main__":
    main()
