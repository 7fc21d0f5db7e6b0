"""The file of a dump: it has its name when it is whole, and is the work of one dump."""

import os
from pathlib import Path

import pytest

from server.embedded_postgres.dumps import _file_beside
from server.embedded_postgres.system_account import EmbeddedError


def test_a_dump_has_its_name_when_it_is_whole_and_no_one_else_can_read_it(tmp_path: Path) -> None:
    target = tmp_path / "a.dump"
    with _file_beside(target) as descriptor:
        os.write(descriptor, b"whole")
        assert not target.exists()
    assert target.read_bytes() == b"whole"
    assert target.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [target]


def write_while_another_does(target: Path) -> None:
    with _file_beside(target) as first:
        os.write(first, b"first")
        with _file_beside(target) as second:
            os.write(second, b"second")


def test_of_two_dumps_to_one_name_the_earlier_fails_and_the_file_is_the_later_one(tmp_path: Path) -> None:
    target = tmp_path / "a.dump"
    with pytest.raises(EmbeddedError, match="Another dump is being written"):
        write_while_another_does(target)
    assert target.read_bytes() == b"second"
    assert list(tmp_path.iterdir()) == [target]


def test_a_dump_that_ends_while_a_later_one_is_written_leaves_its_file_alone(tmp_path: Path) -> None:
    target = tmp_path / "a.dump"
    earlier = _file_beside(target)
    os.write(earlier.__enter__(), b"earlier")
    with _file_beside(target) as later:
        os.write(later, b"lat")
        with pytest.raises(EmbeddedError):
            earlier.__exit__(None, None, None)
        assert not target.exists()
        os.write(later, b"er")
    assert target.read_bytes() == b"later"


def test_what_a_killed_dump_has_left_is_replaced_and_a_file_that_has_come_meanwhile_is_not(
    tmp_path: Path,
) -> None:
    target = tmp_path / "a.dump"
    (tmp_path / "a.dump.partial").write_bytes(b"left")
    with _file_beside(target) as descriptor:
        os.write(descriptor, b"whole")
    assert target.read_bytes() == b"whole"
    with pytest.raises(FileExistsError), _file_beside(target):
        pass
    assert list(tmp_path.iterdir()) == [target]
