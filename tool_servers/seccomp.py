"""Seccomp filters: the system calls that are refused in a sandbox, and those left to a computing process."""

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Sequence

_X86_64, _AARCH64 = 0xC000003E, 0xC00000B7
ARCHITECTURES = {"x86_64": _X86_64, "aarch64": _AARCH64}

# Numbers on x86-64 and on aarch64, of the kernel's own headers; None where there is no such call.
_REFUSED: dict[str, tuple[int, int | None]] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "mq_open": (240, 180),
    "msgget": (68, 186),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "semget": (64, 190),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "shmget": (29, 194),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "vmsplice": (278, 75),
}
_CLONE3 = (435, 435)
_CLONE = (56, 220)
_SOCKET = (41, 198)
_NEW_NAMESPACES = 0x7E020000
_FAMILIES = (1, 2, 10)
"""Unix, IPv4, IPv6. Others reach past the network's namespace: AF_VSOCK leads to a virtual machine's host."""
_COMPUTING: dict[str, tuple[int, int]] = {
    "brk": (12, 214),
    "clock_gettime": (228, 113),
    "close": (3, 57),
    "exit": (60, 93),
    "exit_group": (231, 94),
    "fstat": (5, 80),
    "futex": (202, 98),
    "getrandom": (318, 278),
    "lseek": (8, 62),
    "madvise": (28, 233),
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "mremap": (25, 216),
    "munmap": (11, 215),
    "read": (0, 63),
    "restart_syscall": (219, 128),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "sched_yield": (24, 124),
    "sigaltstack": (131, 132),
    "write": (1, 64),
}
"""Memory, time, and descriptors that are open already."""

_LOAD, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_KILL, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_X32 = 0x40000000
_SET_NO_NEW_PRIVILEGES, _SET_SECCOMP, _GET_SECCOMP, _FILTER = 38, 22, 21, 2
Instruction = tuple[int, int, int, int]

_libc = ctypes.CDLL(None, use_errno=True)


def sandbox_filter(machine: str) -> bytes:
    """The filter of a sandbox for a machine as `os.uname` names it, as bubblewrap takes it. Raises KeyError.

    Namespaces isolate the code; the filter removes kernel interfaces through which namespaces have been
    escaped, and those whose memory is not accounted to the process.
    """
    lines, column = _check_architecture(machine)
    for numbers in _REFUSED.values():
        if (number := numbers[column]) is not None:
            lines += _refuse(number, errno.EPERM)
    # What it is asked for lies in memory, where a filter cannot look; libc then asks by clone, where it can.
    lines += _refuse(_CLONE3[column], errno.ENOSYS)
    lines += _if_syscall(
        _CLONE[column],
        [
            (_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
            (_IF_ANY_BIT, 0, 1, _NEW_NAMESPACES),
            (_RETURN, 0, 0, _ERRNO | errno.EPERM),
            (_RETURN, 0, 0, _ALLOW),
        ],
    )
    families = [(_IF_EQUAL, len(_FAMILIES) - index, 0, family) for index, family in enumerate(_FAMILIES)]
    lines += _if_syscall(
        _SOCKET[column],
        [
            (_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
            *families,
            (_RETURN, 0, 0, _ERRNO | errno.EAFNOSUPPORT),
            (_RETURN, 0, 0, _ALLOW),
        ],
    )
    return _encode([*lines, (_RETURN, 0, 0, _ALLOW)])


def computing_filter(machine: str) -> bytes:
    """The filter of a process that computes on what it has read: other calls get EPERM. Raises KeyError."""
    lines, column = _check_architecture(machine)
    for numbers in _COMPUTING.values():
        lines += _if_syscall(numbers[column], [(_RETURN, 0, 0, _ALLOW)])
    return _encode([*lines, (_RETURN, 0, 0, _ERRNO | errno.EPERM)])


def can_filter() -> bool:
    """Whether the kernel takes a filter for this machine."""
    is_known = sys.platform == "linux" and os.uname().machine in ARCHITECTURES
    return is_known and _libc.prctl(_GET_SECCOMP, 0, 0, 0, 0) >= 0


def only_compute() -> None:
    """Give up the other system calls for good, where the kernel can. Raises OSError if it then refuses."""
    if not can_filter():
        return
    code = computing_filter(os.uname().machine)
    buffer = ctypes.create_string_buffer(code, len(code))
    # struct sock_fprog: a count, padding, a pointer
    prog = struct.pack("@HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    for arguments in ((_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0), (_SET_SECCOMP, _FILTER, prog, 0, 0)):
        if _libc.prctl(*arguments) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _check_architecture(machine: str) -> tuple[list[Instruction], int]:
    """The first instructions, which load the call's number, and the machine's column of the tables above."""
    architecture = ARCHITECTURES[machine]
    lines: list[Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_IF_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
    ]
    if architecture == _X86_64:  # the same calls by other numbers
        lines += [(_IF_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _KILL)]
    return lines, (_X86_64, _AARCH64).index(architecture)


def _refuse(number: int, error: int) -> list[Instruction]:
    return _if_syscall(number, [(_RETURN, 0, 0, _ERRNO | error)])


def _if_syscall(number: int, lines: Sequence[Instruction]) -> list[Instruction]:
    return [(_IF_EQUAL, 0, len(lines), number), *lines]


def _encode(lines: Sequence[Instruction]) -> bytes:
    return b"".join(struct.pack("=HBBI", *line) for line in lines)
