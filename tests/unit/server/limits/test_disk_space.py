import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.limits.disk_space import Disk, Space, space_of
from tests.support.builders import examples

GIB = 1024**3
sizes = st.integers(0, 2**50)


@pytest.mark.parametrize(
    ("total", "reserve"), [(100 * GIB, 2 * GIB), (20 * GIB, 2 * GIB), (10 * GIB, GIB), (1000, 100)]
)
def test_a_tenth_of_a_small_disk_and_two_gibibytes_of_a_large_one_are_the_reserve(
    total: int, reserve: int
) -> None:
    assert not space_of(reserve, total, None).is_short
    short = space_of(reserve - 1, total, None)
    assert (short, short.is_short) == (Space(reserve - 1, reserve), True)


@given(sizes, sizes, sizes)
@examples(100)
def test_a_reserve_that_was_set_holds_whatever_the_disks_size(free: int, total: int, reserve: int) -> None:
    space = space_of(free, total, reserve)
    assert (space, space.is_short) == (Space(free, reserve), free < reserve)


def test_no_reserve_is_never_short() -> None:
    assert not space_of(0, 1000, 0).is_short


def test_a_disk_is_asked_what_an_ordinary_user_may_fill(tmp_path: Path) -> None:
    found = os.statvfs(tmp_path)
    shortage = Disk(tmp_path, found.f_blocks * found.f_frsize + 1).shortage()
    assert shortage is not None
    assert 0 < shortage.free <= found.f_bfree * found.f_frsize
    assert Disk(tmp_path, 1).shortage() is None


def test_a_disk_that_cannot_be_seen_is_never_short() -> None:
    assert Disk(None, 2**60).shortage() is None
