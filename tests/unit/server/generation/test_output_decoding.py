import itertools

from hypothesis import given
from hypothesis import strategies as st

from engine.request import StopMatch
from server.generation.output_decoding import StopStringFilter
from tests.support.builders import examples

texts = st.text("abc", max_size=24)
stops = st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3)


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    return [text[a:b] for a, b in itertools.pairwise(places)]


def hit(text: str, wanted: list[str]) -> tuple[str, StopMatch] | None:
    """The text up to the end of the stop string that ends first, and which that is."""
    ends = [(place + len(stop), stop) for stop in wanted if (place := text.find(stop)) >= 0]
    if not ends:
        return None
    end, stop = min(ends)
    return text[:end], StopMatch(stop, 1, 0, 0)


@given(texts, stops, st.lists(st.integers(0, 24)), st.booleans())
@examples(500)
def test_text_is_told_up_to_the_stop_string_that_ends_it(
    text: str, wanted: list[str], cuts: list[int], told: bool
) -> None:
    found = hit(text, wanted)
    given_text, stop_match = found if found is not None else (text, None)
    filtered = StopStringFilter(wanted, include=told)
    said = "".join(filtered.feed(piece) for piece in pieces_of(given_text, cuts)) + filtered.close(stop_match)
    if stop_match is None or told:
        assert said == given_text
    else:
        assert said == given_text.removesuffix(stop_match.text)


def test_a_stop_string_that_the_engine_went_on_behind_is_text() -> None:
    filtered = StopStringFilter(["ab"], include=False)
    assert [filtered.feed("xab"), filtered.feed("y"), filtered.close(None)] == ["x", "aby", ""]


def test_without_stop_strings_all_text_is_told_at_once() -> None:
    assert StopStringFilter([], include=False).feed("a") == "a"
