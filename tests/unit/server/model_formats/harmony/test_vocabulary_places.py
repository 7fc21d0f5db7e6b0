"""Each text of gpt-oss's tells the tokens that it came from, so that their probabilities are told with it."""

from collections.abc import Sequence

import pytest

from server.model_formats.harmony.harmony_parser import HarmonyParser
from server.model_formats.harmony.vocabulary import STOPS
from server.model_formats.model_format import Delta, Prompt, TextDelta, merge_deltas
from tests.support.harmony import encoding, ids_of, places_of


def read(output: Sequence[int]) -> list[Delta]:
    prompt = Prompt(token_ids=tuple(ids_of("<|start|>assistant")), stop_ids=STOPS)
    parser = HarmonyParser(encoding().tokens, prompt)
    return merge_deltas([delta for token in output for delta in parser.feed([token])] + parser.close())


def test_text_tells_which_tokens_it_came_from() -> None:
    """Those of every message, of a character that takes several, and none of thoughts, headers and calls."""
    output = ids_of(
        "<|channel|>analysis<|message|>Hm<|end|>"
        "<|start|>assistant<|channel|>commentary<|message|>I ask 🙂.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>日本 ≠ 🙃lm<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.fly json<|message|>{}<|call|>"
    )
    said = {*ids_of("I ask 🙂."), *ids_of("日本 ≠ 🙃lm")}
    deltas = read(output)
    assert {output[place] for place in places_of(deltas)} == said
    for delta in deltas:
        if isinstance(delta, TextDelta):
            spelled = b"".join(encoding().tokens[output[place]] for place in delta.token_indices)
            assert spelled.decode() == delta.text


@pytest.mark.parametrize("output", ["Hello there, Ulm", "Hello<|end|>", "Hello, this goes on for quite long"])
def test_text_without_a_header_tells_its_tokens_too(output: str) -> None:
    tokens = ids_of(output)
    (_, delta) = read(tokens)
    assert isinstance(delta, TextDelta)
    assert list(delta.token_indices) == list(range(len(tokens) - output.count("<|end|>")))
