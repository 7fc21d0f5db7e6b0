import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.request import TokenLogprobs
from engine.vocabulary import Vocabulary
from server.generation.output_decoding import Decoded, DecodingSpec, OutputDecoder
from server.model_formats.chat_template.chat_output_parser import PlainParser
from server.model_formats.model_format import (
    Delta,
    MessageStart,
    Prompt,
    ReasoningDelta,
    TextDelta,
    merge_deltas,
)
from tests.support.builders import examples
from tests.support.families import CALLERS, THINKERS, TOOLS, format_of, ids_of, shown
from tests.support.family_formats import FAMILIES
from tests.support.harmony import harmony_format
from tests.support.harmony import ids_of as harmony_ids_of

PROMPT = Prompt(token_ids=(), stop_ids=frozenset(), tools=TOOLS)
LED = [name for name in CALLERS if name not in ("llama3_json", "pythonic", "xlam")]
"""Families whose calls may come after text."""
ANSWER = "Well"
"""A text without the stop strings below."""
MARKUP = [
    "\n",
    "\n\n",
    " ",
    "{",
    "}",
    '"',
    "<",
    "</",
    ">",
    "[",
    "|",
    ":",
    "name",
    "tool",
    "call",
    "get_",
    "Paris",
]


def decode(
    name: str, text: str, stops: Sequence[str] = (), **fields: Any
) -> tuple[list[Delta], OutputDecoder]:
    spec = DecodingSpec(format_of(name).parser(PROMPT), stop_strings=stops, **fields)
    decoder = OutputDecoder(spec)
    decoded = decoder.feed(ids_of(name, text), None) + decoder.close()
    return merge_deltas([delta for delta, _ in decoded]), decoder


@pytest.mark.parametrize("name", CALLERS)
@pytest.mark.parametrize("stop", MARKUP)
def test_a_stop_string_that_a_call_contains_does_not_end_the_call(name: str, stop: str) -> None:
    call = FAMILIES[name].call
    calls, decoder = decode(name, call, [stop])
    assert shown(calls) == shown(decode(name, call)[0])
    assert decoder.stop_string is None


@pytest.mark.parametrize("name", LED)
@pytest.mark.parametrize("stop", ["\n", "{", "<", "[", "|"])
def test_a_stop_string_of_the_markup_does_not_cut_the_text_before_a_call(name: str, stop: str) -> None:
    deltas, _ = decode(name, f"{ANSWER}\n{FAMILIES[name].call}", [stop])
    assert shown(deltas) == shown(decode(name, f"{ANSWER}\n{FAMILIES[name].call}")[0])


@pytest.mark.parametrize("name", THINKERS)
@pytest.mark.parametrize("stop", [" ", "\n", "<", "think", "idea"])
def test_a_stop_string_ends_the_answer_and_no_reasoning(name: str, stop: str) -> None:
    family = FAMILIES[name]
    text = f"{family.open}An idea.\nA <good> one.{family.close}{ANSWER}"
    assert decode(name, f"{text}{stop}and", [stop])[0] == decode(name, text)[0]
    _, decoder = decode(name, f"{text}{stop}and", [stop])
    assert decoder.stop_string == stop


@pytest.mark.parametrize("name", CALLERS)
def test_text_that_could_have_become_a_call_is_searched_once_it_is_text(name: str) -> None:
    text = f"{ANSWER} <tool_x {{ [ and so on END more"
    deltas, decoder = decode(name, text, ["END"])
    assert shown(deltas) == [f"text {text[: text.index('END')]}"]
    assert decoder.stop_string == "END"


def harmony(text: str, stops: Sequence[str]) -> tuple[list[Delta], OutputDecoder]:
    decoder = OutputDecoder(DecodingSpec(harmony_format().parser(PROMPT), stop_strings=stops))
    decoded = decoder.feed(harmony_ids_of(text), None) + decoder.close()
    return merge_deltas([delta for delta, _ in decoded]), decoder


THOUGHTS = "<|channel|>analysis<|message|>First of all<|end|><|start|>assistant"
LEAD = "<|channel|>commentary<|message|>Let me look.<|end|><|start|>assistant"


@pytest.mark.parametrize("stop", [" ", "l", "{", "commentary", "city"])
def test_of_gpt_oss_only_the_answer_is_searched(stop: str) -> None:
    call = (
        '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Ulm"}<|call|>'
    )
    called, decoder = harmony(THOUGHTS + LEAD + call, [stop])
    assert shown(called) == shown(harmony(THOUGHTS + LEAD + call, [])[0])
    assert decoder.stop_string is None
    answered, decoder = harmony(f"{THOUGHTS}<|channel|>final<|message|>OK{stop}then<|return|>", [stop])
    assert answered == [ReasoningDelta("First of all"), MessageStart("final_answer"), TextDelta("OK")]
    assert decoder.stop_string == stop


PIECES = (b"a", b"b", b"ab", b"ba", b" a", "ä".encode(), "ä".encode()[:1], "ä".encode()[1:], b"")


def plain(
    token_ids: Sequence[int], stops: Sequence[str], cuts: Sequence[int], **fields: Any
) -> tuple[Decoded, OutputDecoder]:
    """The deltas of tokens that come in pieces, each with a log probability."""
    vocabulary = Vocabulary(PIECES)
    spec = DecodingSpec(
        PlainParser(vocabulary, frozenset()), stop_strings=stops, vocabulary=vocabulary, **fields
    )
    decoder = OutputDecoder(spec)
    borders = sorted({0, len(token_ids), *(min(cut, len(token_ids)) for cut in cuts)})
    decoded: Decoded = []
    for begin, end in itertools.pairwise(borders):
        decoded += decoder.feed(token_ids[begin:end], [TokenLogprobs(-1.0)] * (end - begin))
    return decoded + decoder.close(), decoder


outputs = st.lists(st.integers(0, len(PIECES) - 1), max_size=12)
cuttings = st.lists(st.integers(0, 12), max_size=4)
stop_lists = st.lists(st.text("ab ä", min_size=1, max_size=3), max_size=3)


@given(outputs, stop_lists, cuttings, st.booleans(), st.integers(0, 4))
@examples(400)
def test_however_tokens_come_the_same_text_has_the_same_log_probabilities(
    token_ids: list[int], stops: list[str], cuts: list[int], include: bool, min_tokens: int
) -> None:
    fields = {"include_stop_string": include, "min_tokens": min_tokens}
    whole, one = plain(token_ids, stops, [], **fields)
    pieces, other = plain(token_ids, stops, cuts, **fields)
    assert (one.stop_string, one.token_count) == (other.stop_string, other.token_count)
    assert text_of(whole) == text_of(pieces)
    assert [bytes(each.bytes) for _, some in whole for each in some] == [
        bytes(each.bytes) for _, some in pieces for each in some
    ]
    assert all(isinstance(delta, TextDelta) and delta.text for delta, _ in pieces)


def text_of(decoded: Decoded) -> str:
    return "".join(delta.text for delta, _ in decoded if isinstance(delta, TextDelta))


whole_characters = st.lists(st.integers(0, 5), max_size=12)


@given(whole_characters, stop_lists, cuttings)
@examples(400)
def test_log_probabilities_join_to_the_text_but_for_the_rest_of_its_last_token(
    token_ids: list[int], stops: list[str], cuts: list[int]
) -> None:
    decoded, decoder = plain(token_ids, stops, cuts)
    tokens = [each.token for _, some in decoded for each in some]
    text, joined = text_of(decoded), "".join(tokens)
    assert joined.startswith(text)
    assert len(joined[len(text) :]) < len(tokens[-1]) if tokens else not text
    if decoder.stop_string is None:
        assert joined == text


def test_tokens_after_the_one_that_completes_a_stop_string_are_no_output() -> None:
    decoded, decoder = plain([0, 1, 0, 0, 1], ["ba"], [])
    assert (text_of(decoded), decoder.stop_string, decoder.token_count) == ("a", "ba", 3)


def test_a_stop_string_within_min_tokens_is_text() -> None:
    decoded, decoder = plain([0, 1, 0, 1, 0, 1], ["ab"], [], min_tokens=3)
    assert (text_of(decoded), decoder.token_count) == ("ab", 4)
