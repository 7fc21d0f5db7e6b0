import itertools

from hypothesis import given
from hypothesis import strategies as st

from server.generation.output_decoding import StopStrings
from tests.support.builders import examples

texts = st.text("abc", max_size=24)
stops = st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3)


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    borders = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    return [text[a:b] for a, b in itertools.pairwise(borders)]


def expected(text: str, wanted: list[str], *, include: bool) -> tuple[str, str | None]:
    """The text up to the stop string that is complete first, of several the longest, and which that is."""
    ends = [(at + len(stop), at, stop) for stop in wanted if (at := text.find(stop)) >= 0]
    if not ends:
        return text, None
    end, start, stop = min(ends)
    return text[: end if include else start], stop


@given(texts, stops, st.lists(st.integers(0, 24)), st.booleans())
@examples(500)
def test_the_first_stop_string_ends_a_text_however_it_is_cut(
    text: str, wanted: list[str], cuts: list[int], include: bool
) -> None:
    found = StopStrings(wanted, include=include)
    streamed = ""
    for piece in pieces_of(text, cuts):
        if found.match is None:
            streamed += found.feed(piece)
    assert (streamed + found.flush(), found.match) == expected(text, wanted, include=include)


def test_text_is_held_back_only_as_long_as_it_may_begin_a_stop_string() -> None:
    found = StopStrings(["abc", "bb"], include=False)
    assert [found.feed(letter) for letter in "xabdb"] == ["x", "", "", "abd", ""]
    assert found.flush() == "b"


def test_a_stop_string_that_may_not_end_the_text_yet_is_text() -> None:
    found = StopStrings(["ab"], include=False)
    assert [found.feed("xab", ends=False), found.feed("yab")] == ["xab", "y"]
    assert found.match == "ab"


def test_text_of_two_messages_is_not_searched_as_one() -> None:
    found = StopStrings(["ab"], include=False)
    assert [found.feed("xa"), found.flush(), found.feed("b")] == ["x", "a", "b"]


def test_without_stop_strings_all_text_is_streamed_at_once() -> None:
    assert StopStrings([], include=False).feed("a") == "a"
