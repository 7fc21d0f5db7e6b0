"""Outputs of every family with parts cut, doubled, exchanged and broken, and with marks in prose."""

import os
import random
import re
from collections import Counter

import pytest

from server.model_formats.model_format import (
    CallDelta,
    CallStart,
    Delta,
    Prompt,
    ReasoningDelta,
    TextDelta,
    merge_deltas,
)
from tests.support.families import CALLERS, TOOLS, format_of, ids_of
from tests.support.family_formats import FAMILIES

PROMPTS = [
    Prompt(token_ids=(), stop_ids=frozenset(), tools=TOOLS, opens_reasoning=opened)
    for opened in (False, True)
]
MANY = "FAULT_ROUNDS" in os.environ
_WORD = re.compile(r"w[0-9]+w")


def mutated(name: str, random_: random.Random) -> str:
    """An output with numbered words in its prose, parts of which are not as a model would write them."""
    family = FAMILIES[name]
    marks = [mark for mark in (*family.added, family.open.strip(), family.close.strip()) if mark]
    words = iter(range(100))

    def prose() -> str:
        said = [f"w{next(words)}w" for _ in range(random_.randint(1, 3))]
        if random_.random() < 0.3:
            said.insert(random_.randrange(len(said)), random_.choice(marks))
        return f" {' '.join(said)} "

    parts = [prose()]
    for _ in range(random_.randint(1, 4)):
        part = random_.choice([family.call, family.two, family.patch, family.open, family.close])
        if random_.random() < 0.4 and part:
            part = _broken(part, random_)
        parts += [part, prose()] if random_.random() < 0.8 else [part]
    return "".join(parts)


def _broken(text: str, random_: random.Random) -> str:
    a, b = sorted(random_.randrange(len(text) + 1) for _ in range(2))
    match random_.randrange(4):
        case 0:
            return text[:a]
        case 1:
            return text[:a] + text[b:]
        case 2:
            return text[:b] + text[a:]
        case _:
            return text[b:] + text[a:b] + text[:a]


def check(name: str, text: str, prompt: Prompt, cuts: random.Random) -> None:
    ids = ids_of(name, text)
    parser = format_of(name).parser(prompt)
    whole = merge_deltas(parser.feed(ids) + parser.close())
    said = "".join(
        f"|{delta.name if isinstance(delta, CallStart) else delta.text}|"
        for delta in whole
        if isinstance(delta, CallStart | CallDelta | TextDelta | ReasoningDelta)
    )
    assert Counter(_WORD.findall(said)) == Counter(_WORD.findall(text)), (text, whole)
    if cuts.random() < (0.1 if MANY else 1):
        check_streamed(name, ids, prompt, cuts, whole, parser.reasoning_tokens)


def check_streamed(
    name: str, ids: list[int], prompt: Prompt, cuts: random.Random, whole: list[Delta], reasoning_tokens: int
) -> None:
    parser = format_of(name).parser(prompt)
    deltas, at = [], 0
    while at < len(ids):
        size = cuts.choice((1, 1, 2, 7))
        deltas += parser.feed(ids[at : at + size])
        at += size
    assert merge_deltas(deltas + parser.close()) == whole, ids
    assert parser.reasoning_tokens == reasoning_tokens


@pytest.mark.parametrize("name", CALLERS)
def test_mutated_outputs_lose_and_double_nothing_at_any_split(name: str) -> None:
    random_ = random.Random(name)
    for _ in range(100_000 if MANY else 150):
        check(name, mutated(name, random_), random_.choice(PROMPTS), random_)
