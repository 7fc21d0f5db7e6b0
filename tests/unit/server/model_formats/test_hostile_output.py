"""Whatever a model writes is read in time that grows as its length does, in every family's format."""

import time

import pytest

from server.model_formats.interface import Prompt
from tests.support.families import CALLERS, TOOLS, format_of, ids_of
from tests.support.family_formats import FAMILIES

TOKENS = 1500
FACTOR = 4
"""Times as many tokens."""
MOST = 12
"""Times as long as that may take: a reader of quadratic time takes 16 times as long."""
QUICK_S = 0.2
"""Of processor time, below which nothing is compared: 6,000 tokens are read in a tenth of it."""


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


def seconds(name: str, text: str, count: int) -> float:
    """To read the text's beginning once and its last character again and again, token by token."""
    ids = ids_of(name, text)
    ids += ids[-1:] * (count - len(ids))
    prompt = Prompt(token_ids=(), stop_ids=frozenset(), tools=TOOLS)
    parser = format_of(name).parser(prompt)
    begun = time.thread_time()
    for token in ids:
        parser.feed([token])
    parser.close()
    return time.thread_time() - begun


@pytest.mark.parametrize("name", CALLERS)
def test_hostile_output_is_read_in_linear_time(name: str) -> None:
    for text in hostile(name):
        long = seconds(name, text, TOKENS * FACTOR)
        if long > QUICK_S:
            short = min(seconds(name, text, TOKENS) for _ in range(3))
            least = min(long, *(seconds(name, text, TOKENS * FACTOR) for _ in range(3)))
            assert least < short * MOST, f"for {text!r}"
