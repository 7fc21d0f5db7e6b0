"""Plain text read from tokens: whole characters only, control tokens unheard, any split alike."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from engine.vocabulary import Vocabulary
from server.model_formats.interface import TextDelta
from server.model_formats.plain_text import PlainParser
from server.model_formats.text_stream.merge_deltas import merge_deltas

VOCABULARY = Vocabulary((b"a", b" b", b"\xf0\x9f", b"\x98\x80", b"<|end|>", b""), frozenset({4}))


def read(pieces: Sequence[Sequence[int]]) -> list[object]:
    parser = PlainParser(VOCABULARY, frozenset({0}))
    deltas = [delta for piece in pieces for delta in parser.feed(piece)]
    return list(merge_deltas(deltas + parser.close()))


def test_text_has_leading_spaces_and_the_places_of_its_tokens() -> None:
    (delta,) = read([[1, 1]])
    assert delta == TextDelta(" b b")
    assert isinstance(delta, TextDelta)
    assert delta.token_indices == (0, 1)


def test_character_is_told_once_it_is_whole_with_all_of_its_tokens() -> None:
    parser = PlainParser(VOCABULARY, frozenset())
    assert parser.feed([2]) == []
    (delta,) = parser.feed([3])
    assert isinstance(delta, TextDelta)
    assert (delta.text, delta.token_indices) == ("😀", (0, 1))


def test_half_a_character_at_the_end_is_told_as_what_it_is() -> None:
    assert read([[1, 2]]) == [TextDelta(" b\N{REPLACEMENT CHARACTER}")]


def test_control_and_stop_tokens_have_no_text() -> None:
    assert read([[4, 1, 0]]) == [TextDelta(" b")]


@given(st.lists(st.integers(0, 5), max_size=20), st.integers(1, 5))
def test_any_split_of_the_tokens_says_the_same(tokens: list[int], size: int) -> None:
    split = [tokens[at : at + size] for at in range(0, len(tokens), size)]
    once, pieces = read([tokens]), read(split)
    assert pieces == once
    assert [delta.token_indices for delta in pieces if isinstance(delta, TextDelta)] == [
        delta.token_indices for delta in once if isinstance(delta, TextDelta)
    ]
