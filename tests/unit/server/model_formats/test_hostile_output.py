"""Whatever a model writes is read in time that grows as its length does, in every family's format."""

import time

import pytest

from server.model_formats.chat_template.chat_output_parser import MAX_UNDECODED
from server.model_formats.model_format import Prompt, TextDelta, merge_deltas
from tests.support.families import CALLERS, TOOLS, format_of, ids_of, tokenizer_at
from tests.support.family_formats import FAMILIES

TOKENS = 500
FACTOR = 4
"""Times as many tokens."""
MOST = 12
"""Times as long as that may take: a reader of quadratic time takes 16 times as long."""
QUICK_S = 0.05
"""Of processor time, below which nothing is compared: 2,000 tokens are read in a tenth of it."""


def hostile(name: str) -> list[str]:
    family = FAMILIES[name]
    opening = family.call[: len(family.call) // 2]
    units = [
        "<",
        "[",
        "{",
        '"',
        "\\",
        " ",
        "\n",
        "a",
        "<|",
        '{"',
        "[[",
        "\\u12",
        family.call[:3],
        family.call[:9],
    ]
    return [*units, *(opening + unit for unit in units)]


def seconds(name: str, ids: list[int], count: int) -> float:
    """To read the tokens once and the last of them again and again, token by token."""
    ids = ids + ids[-1:] * (count - len(ids))
    prompt = Prompt(token_ids=(), stop_ids=frozenset(), tools=TOOLS)
    parser = format_of(name).parser(prompt)
    begun = time.thread_time()
    for token in ids:
        parser.feed([token])
    parser.close()
    return time.thread_time() - begun


@pytest.mark.parametrize("name", CALLERS)
def test_hostile_output_is_read_in_linear_time(name: str) -> None:
    half, *_ = ids_of(name, "😀")
    for ids in [[half], *(ids_of(name, text) for text in hostile(name))]:
        long = seconds(name, ids, TOKENS * FACTOR)
        if long > QUICK_S:
            short = min(seconds(name, ids, TOKENS) for _ in range(3))
            least = min(long, *(seconds(name, ids, TOKENS * FACTOR) for _ in range(3)))
            assert least < short * MOST, f"for {tokenizer_at(name).decode(ids)!r}"


@pytest.mark.parametrize("name", CALLERS)
@pytest.mark.parametrize("count", [1, MAX_UNDECODED - 1, MAX_UNDECODED, 50])
def test_a_character_behind_many_halves_of_one_is_read_with_its_tokens(name: str, count: int) -> None:
    ids = ids_of(name, "😀")
    parser = format_of(name).parser(Prompt(token_ids=(), stop_ids=frozenset(), tools=TOOLS))
    deltas = parser.feed(ids[:1] * count + ids)
    deltas += parser.feed(ids_of(name, "a")) + parser.close()
    (text,) = merge_deltas(deltas)
    assert isinstance(text, TextDelta)
    assert text.text == "\N{REPLACEMENT CHARACTER}" * count + "😀a"
    assert text.token_indices == tuple(range(count + len(ids) + 1))
