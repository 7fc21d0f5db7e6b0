"""Two responses compared."""

import random
from time import perf_counter

import pytest

from server.console.pages.compare import (
    MAX_CHARS_BY_WORD,
    MAX_LINES,
    MAX_SHOWN_CHARS,
    Piece,
    compare_parameters,
    compare_texts,
)


def test_parameters_that_differ_come_first() -> None:
    found = compare_parameters({"a": 1, "same": None, "z": [1]}, {"b": "x", "same": None, "z": [2]})
    assert [(one.name, one.a, one.b, one.differs) for one in found] == [
        ("a", "1", "", True),
        ("b", "", '"x"', True),
        ("z", "[1]", "[2]", True),
        ("same", "null", "null", False),
    ]


def test_a_long_parameter_is_shown_by_its_beginning_and_compared_whole() -> None:
    (found,) = compare_parameters({"a": "x" * 5000 + "1"}, {"a": "x" * 5000 + "2"})
    assert found.differs
    assert len(found.a) == MAX_SHOWN_CHARS + 1


def test_short_texts_are_compared_by_word() -> None:
    found = compare_texts("The weather in Paris.", "The weather in Rome.")
    assert found.pieces == [
        Piece("equal", "The weather in "),
        Piece("removed", "Paris"),
        Piece("added", "Rome"),
        Piece("equal", "."),
    ]
    assert (found.by, found.is_equal) == ("word", False)


@pytest.mark.parametrize("text", ["", "the same", "the same\n" * 5000])
def test_equal_texts_are_equal(text: str) -> None:
    assert compare_texts(text, text).is_equal


def test_east_asian_texts_are_compared_by_character() -> None:
    pieces = compare_texts("今日は晴れ", "今日は雨").pieces
    assert pieces[0] == Piece("equal", "今日は")


def test_long_texts_are_compared_by_line() -> None:
    lines = [f"line {number}\n" for number in range(900)]
    changed = [*lines[:450], "another\n", *lines[451:]]
    found = compare_texts(
        "".join(lines) + "x" * MAX_CHARS_BY_WORD, "".join(changed) + "x" * MAX_CHARS_BY_WORD
    )
    assert found.by == "line"
    assert Piece("removed", "line 450\n") in found.pieces
    assert Piece("added", "another\n") in found.pieces


def test_a_long_equal_piece_is_shown_by_its_ends() -> None:
    found = compare_texts("sentence " * 1400 + "a", "sentence " * 1400 + "b")
    assert len(found.pieces[0].text) < 2 * MAX_SHOWN_CHARS


def test_lines_behind_the_bound_are_not_compared_and_that_is_said() -> None:
    a = "x\n" * (MAX_LINES + 10_000)
    found = compare_texts(a, a + "y")
    assert found.is_cut
    assert not found.is_equal


@pytest.mark.parametrize("alphabet", [2, 60, 300])
@pytest.mark.parametrize("separator", [" ", "\n" + "-" * 30])
def test_hostile_texts_are_compared_within_seconds(alphabet: int, separator: str) -> None:
    chance = random.Random(alphabet)
    a, b = (separator.join(f"w{chance.randrange(alphabet)}" for _ in range(1480)) for _ in range(2))
    started = perf_counter()
    compare_texts(a, b + " ")
    assert perf_counter() - started < 10
