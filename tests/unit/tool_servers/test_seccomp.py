"""The filter programs, as the kernel would run them."""

import errno
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tool_servers.seccomp import ARCHITECTURES, computing_filter, sandbox_filter

ALLOW, KILL = 0x7FFF0000, 0x80000000
MACHINES = sorted(ARCHITECTURES)


def _verdict(machine: str, number: int, argument: int = 0, architecture: int | None = None) -> int:
    """What the sandbox's filter says of one system call."""
    return _judged(
        sandbox_filter(machine),
        number,
        argument,
        ARCHITECTURES[machine] if architecture is None else architecture,
    )


def _judged(code: bytes, number: int, argument: int, architecture: int) -> int:
    lines = [struct.unpack_from("=HBBI", code, at) for at in range(0, len(code), 8)]
    call = struct.pack("<IIQQ", number, architecture, 0, argument)
    at, loaded = 0, 0
    while True:
        operation, if_so, if_not, constant = lines[at]
        at += 1
        match operation:
            case 0x20:
                (loaded,) = struct.unpack_from("<I", call, constant)
            case 0x15:
                at += if_so if loaded == constant else if_not
            case 0x35:
                at += if_so if loaded >= constant else if_not
            case 0x45:
                at += if_so if loaded & constant else if_not
            case 0x06:
                return int(constant)
            case _:
                raise AssertionError(operation)


def _error(number: int) -> int:
    return 0x00050000 | number


def test_a_call_of_another_architecture_is_deadly() -> None:
    assert _verdict("x86_64", 0, architecture=ARCHITECTURES["aarch64"]) == KILL
    assert _verdict("aarch64", 0, architecture=0x40000003) == KILL
    assert _verdict("x86_64", 0x40000000) == KILL


@pytest.mark.parametrize("number", [101, 165, 272, 308, 319, 321, 425, 29, 248])
def test_dangerous_calls_are_refused_on_x86_64(number: int) -> None:
    assert _verdict("x86_64", number) == _error(errno.EPERM)


@pytest.mark.parametrize("number", [117, 40, 97, 268, 279, 280, 425, 194, 217])
def test_dangerous_calls_are_refused_on_aarch64(number: int) -> None:
    assert _verdict("aarch64", number) == _error(errno.EPERM)


@pytest.mark.parametrize(("machine", "clone"), [("x86_64", 56), ("aarch64", 220)])
@given(flags=st.integers(0, 2**32 - 1))
def test_a_clone_is_refused_exactly_if_it_makes_a_namespace(machine: str, clone: int, flags: int) -> None:
    makes_one = any(flags & bit for bit in (0x20000, 1 << 25, 1 << 26, 1 << 27, 1 << 28, 1 << 29, 1 << 30))
    assert _verdict(machine, clone, flags) == (_error(errno.EPERM) if makes_one else ALLOW)


@pytest.mark.parametrize("machine", MACHINES)
def test_what_cannot_be_looked_into_is_said_not_to_exist(machine: str) -> None:
    assert _verdict(machine, 435) == _error(errno.ENOSYS)


@pytest.mark.parametrize(("machine", "socket"), [("x86_64", 41), ("aarch64", 198)])
def test_sockets_are_made_for_the_network_that_is_not_there_and_for_no_other(
    machine: str, socket: int
) -> None:
    for family in range(64):
        expected = ALLOW if family in (1, 2, 10) else _error(errno.EAFNOSUPPORT)
        assert _verdict(machine, socket, family) == expected


def test_ordinary_calls_are_allowed() -> None:
    assert {_verdict("x86_64", number) for number in (0, 1, 2, 3, 9, 57, 59, 60, 231, 257)} == {ALLOW}


@pytest.mark.parametrize(
    ("machine", "computes", "reaches"),
    [
        # read, write, mmap, brk; open, socket, clone, fork, execve, kill, openat, io_uring_setup, clone3
        ("x86_64", (0, 1, 9, 12), (2, 41, 56, 57, 59, 62, 257, 425, 435)),
        ("aarch64", (63, 64, 222, 214), (198, 220, 221, 129, 56, 425, 435)),
    ],
)
def test_a_process_that_computes_has_memory_and_its_own_descriptors_and_nothing_else(
    machine: str, computes: tuple[int, ...], reaches: tuple[int, ...]
) -> None:
    code, architecture = computing_filter(machine), ARCHITECTURES[machine]
    assert {_judged(code, number, 0, architecture) for number in computes} == {ALLOW}
    assert {_judged(code, number, 0, architecture) for number in reaches} == {_error(errno.EPERM)}
    assert _judged(code, 0, 0, 0x40000003) == KILL
