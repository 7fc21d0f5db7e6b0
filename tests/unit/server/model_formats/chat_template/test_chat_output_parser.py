"""Any split of any tokens tells the same, whoever's format it is, and nothing ever raises."""

import json
import os
import random
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.vocabulary import Vocabulary
from server.model_formats.chat_template.chat_output_parser import PlainParser
from server.model_formats.model_format import (
    CallDelta,
    CallEnd,
    CallStart,
    Delta,
    Prompt,
    TextDelta,
    merge_deltas,
)
from tests.support.builders import examples
from tests.support.families import CALLERS, TOOLS, format_of, ids_of, tokenizer_at
from tests.support.family_formats import FAMILIES

PROMPTS = [
    Prompt(token_ids=(), stop_ids=frozenset(), tools=TOOLS, opens_reasoning=opened)
    for opened in (False, True)
]


def pieces_of(name: str) -> list[list[int]]:
    """Tokens that make trouble: markup whole and in halves, calls, quotes, half characters."""
    family = FAMILIES[name]
    markup = [
        *family.added,
        family.open,
        family.close,
        family.call,
        family.two,
        family.patch,
    ]
    texts = [
        *markup,
        *(text[: len(text) // 2] for text in markup),
        *(text[len(text) // 2 :] for text in markup),
    ]
    texts += [
        "{",
        "}",
        '"',
        "\\",
        "\\u12",
        "\\ud83d",
        "'",
        "[",
        "]",
        ",",
        ":",
        "=",
        "(",
        ")",
        " ",
        "\n",
        "é",
        "a<",
    ]
    return [ids_of(name, text) for text in texts if text] + [ids_of(name, "😀")[:2]]


def tell(name: str, prompt: Prompt, pieces: Sequence[Sequence[int]]) -> tuple[list[Delta], list[int], int]:
    """All that was told, the places of text's tokens, and how many tokens were reasoning."""
    parser = format_of(name).parser(prompt)
    deltas = [delta for piece in pieces for delta in parser.feed(piece)] + parser.close()
    assert parser.close() == []
    whole = merge_deltas(deltas)
    places = [place for delta in whole if isinstance(delta, TextDelta) for place in delta.token_indices]
    return whole, places, parser.reasoning_tokens


def check_order(deltas: Sequence[Delta]) -> None:
    """Arguments and ends belong to an open call; what was ended is whole."""
    open_call: CallStart | None = None
    arguments = ""
    for delta in deltas:
        match delta:
            case CallStart():
                open_call, arguments = delta, ""
            case CallDelta(text):
                assert open_call is not None
                arguments += text
            case CallEnd():
                assert open_call is not None
                open_call = None
            case _:
                open_call = None


@pytest.mark.parametrize("name", CALLERS)
def test_any_split_of_any_tokens_tells_the_same(name: str) -> None:
    stretches = st.lists(st.sampled_from(pieces_of(name)), max_size=12)

    @given(stretches, st.lists(st.integers(0, 200)), st.sampled_from(PROMPTS))
    @examples(60)
    def check(stretch: list[list[int]], cuts: list[int], prompt: Prompt) -> None:
        tokens = [token for piece in stretch for token in piece]
        bounds = [0, *sorted(min(cut, len(tokens)) for cut in cuts), len(tokens)]
        expected = tell(name, prompt, [tokens])
        assert tell(name, prompt, [[token] for token in tokens]) == expected
        assert tell(name, prompt, [tokens[a:b] for a, b in pairwise(bounds)]) == expected
        check_order(expected[0])
        assert expected[1] == sorted(set(expected[1]))
        assert all(place < len(tokens) for place in expected[1])

    check()


def fuzz(name: str, count: int) -> None:
    random_ = random.Random(name)
    pieces = pieces_of(name)
    size = tokenizer_at(name).get_vocab_size()
    for _ in range(count):
        parser = format_of(name).parser(random_.choice(PROMPTS))
        deltas: list[Delta] = []
        for _ in range(random_.randint(1, 10)):
            stretch = random_.choice(pieces) if random_.random() < 0.7 else [random_.randrange(size)]
            deltas += parser.feed(stretch)
        check_order(deltas + parser.close())


@pytest.mark.faults
@pytest.mark.parametrize("name", CALLERS)
def test_random_tokens_never_raise(name: str) -> None:
    fuzz(name, 100_000 if os.environ.get("FAULT_ROUNDS") else 300)


@pytest.mark.parametrize("name", CALLERS)
def test_text_tells_which_tokens_it_came_from(name: str) -> None:
    """Its own, not those of the call after it; a character of several tokens has them all."""
    said, after = ids_of(name, "It is 😀 so"), ids_of(name, FAMILIES[name].call)
    deltas, places, _ = tell(name, PROMPTS[0], [[token] for token in [*said, *after]])
    if name in ("llama3_json", "pythonic", "xlam"):  # their calls come first or not at all
        places = places[: len(said)]
    assert places == list(range(len(said)))
    assert tokenizer_at(name).decode(said) == "It is 😀 so"
    assert isinstance(deltas[0], TextDelta)


@pytest.mark.parametrize("name", CALLERS)
def test_arguments_of_a_whole_call_are_json(name: str) -> None:
    deltas, _, _ = tell(name, PROMPTS[0], [ids_of(name, FAMILIES[name].call)])
    assert json.loads("".join(delta.text for delta in deltas if isinstance(delta, CallDelta))) == {
        "city": "Paris",
        "days": 2,
    }


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
