from hypothesis import given
from hypothesis import strategies as st

from server.logs.handler import RepeatFolder


def folder(max_keys: int = 3) -> RepeatFolder[str]:
    return RepeatFolder(10.0, max_keys)


def test_the_first_line_is_written_and_the_same_within_ten_seconds_is_not() -> None:
    repeats = folder()
    assert repeats.admit("a", "line", 0.0)
    assert not repeats.admit("a", "line", 9.9)
    assert repeats.admit("b", "other", 9.9)


def test_those_left_out_are_counted_when_the_time_is_over_and_a_storm_goes_on_as_a_line_in_ten_seconds() -> (
    None
):
    repeats = folder()
    repeats.admit("a", "line", 0.0)
    assert [repeats.admit("a", "line", second) for second in (1.0, 2.0)] == [False, False]
    assert repeats.expire(9.0) == []
    assert repeats.expire(10.0) == [("line", 2)]
    assert not repeats.admit("a", "line", 11.0)
    assert repeats.expire(20.0) == [("line", 1)]


def test_a_warning_that_came_once_is_forgotten_after_ten_seconds() -> None:
    repeats = folder()
    repeats.admit("a", "line", 0.0)
    assert repeats.expire(10.0) == []
    assert len(repeats) == 0
    assert repeats.admit("a", "line", 10.1)


def test_beyond_the_most_keys_the_oldest_is_forgotten_and_its_count_is_kept() -> None:
    repeats = folder(max_keys=2)
    for key in ("a", "a", "b", "c"):
        repeats.admit(key, key, 0.0)
    assert len(repeats) == 2
    assert repeats.expire(1.0) == [("a", 1)]


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.floats(0, 5)), max_size=60))
def test_every_line_is_written_or_counted_and_memory_is_bounded(lines: list[tuple[str, float]]) -> None:
    repeats, now = folder(), 0.0
    written = counted = 0
    for key, pause in lines:
        now += pause
        counted += sum(count for _, count in repeats.expire(now))
        written += repeats.admit(key, key, now)
        assert len(repeats) <= 3
    counted += sum(count for _, count in repeats.expire(now + 20))
    assert written + counted == len(lines)
