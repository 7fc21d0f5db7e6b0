"""Requests beyond the model, all with the same honest answer.

They have to be of many kinds, because whatever is like none of them gets a wrong answer: what people
ask coding agents, code, logs, pasted pages, other languages, and no text at all.
"""

from __future__ import annotations

from collections.abc import Callable

from demo import prompt_words, prompts
from demo.chat import Exchange
from demo.small_talk import FALLBACK, plain_beyond
from demo.vocabulary import Vocabulary
from demo.words import NUMBER_WORDS, SYMBOLS

_THOUGHT = "I do not know this."
_ENDS = (".", ".", "", "?", "!", "...")


def give_up(vocabulary: Vocabulary) -> list[Exchange]:
    """Return a request that is beyond the model, and its honest answer."""
    request = vocabulary.choose_weighted(_REQUESTS)(vocabulary)
    if vocabulary.chance(0.05):
        request = f"{vocabulary.choose(('Hi, ', 'Hello! ', 'Please ', 'ok, ', 'Now '))}{request}"
    return [Exchange(request, FALLBACK, _THOUGHT)]


def _assignment(vocabulary: Vocabulary) -> str:
    """Return what people ask an agent to do."""
    words = [_part(vocabulary) for _ in range(vocabulary.number(1, 12))]
    opening = vocabulary.choose(prompt_words.BEYOND_VERBS)
    if vocabulary.chance(0.25):
        opening = opening.lower()
    request = f"{opening} {' '.join(words)}{vocabulary.choose(_ENDS)}"
    for _ in range(vocabulary.choose((0, 0, 0, 0, 1, 2))):
        request += f" {prompts.sentence(vocabulary)}"
    return request


def _part(vocabulary: Vocabulary) -> str:
    share = vocabulary.random.random()
    if share < 0.8:
        return prompts.filler(vocabulary)
    kinds: tuple[Callable[[], str], ...] = (
        lambda: prompts.file_path(vocabulary),
        lambda: f"`{prompts.identifier(vocabulary)}`",
        lambda: prompts.identifier(vocabulary),
        vocabulary.figure,
        lambda: f'"{prompts.filler(vocabulary)}"',
        vocabulary.name,
        lambda: vocabulary.choose(("the", "a", "my", "this", "that", "of", "in", "for", "with", "and")),
    )
    return vocabulary.choose(kinds)()


def _remark(vocabulary: Vocabulary) -> str:
    if vocabulary.chance(0.4):
        return vocabulary.choose(prompt_words.SHORT_ASIDES)
    if vocabulary.chance(0.3):
        return prompts.filler(vocabulary) + vocabulary.choose(("", ".", "?", "!"))
    return prompts.sentence(vocabulary)


def _pasted(vocabulary: Vocabulary) -> str:
    """Return a text or code, with or without a request before or after it."""
    if vocabulary.chance(0.5):
        text = prompts.code(vocabulary, 1, 12)
        if vocabulary.chance(0.5):
            text = f"```{vocabulary.choose(('', 'python', 'js'))}\n{text}\n```"
    else:
        text = prompts.long_prompt(vocabulary, vocabulary.choose((40, 80, 160, 300, 700)))
    share = vocabulary.random.random()
    if share < 0.3:
        return f"{_assignment(vocabulary)}\n\n{text}"
    if share < 0.5:
        return f"{text}\n\n{_assignment(vocabulary)}"
    return text


def _foreign(vocabulary: Vocabulary) -> str:
    words = [
        vocabulary.choose(prompt_words.FOREIGN) if vocabulary.chance(0.7) else prompts.filler(vocabulary)
        for _ in range(vocabulary.number(2, 9))
    ]
    gap = "" if vocabulary.chance(0.1) else " "
    return gap.join(words).capitalize() + vocabulary.choose(_ENDS)


def _noise(vocabulary: Vocabulary) -> str:
    """Return letters, digits or signs without any sense, or nothing at all."""
    share = vocabulary.random.random()
    if share < 0.08:
        return vocabulary.choose(("", "", " ", "\n", ".", "?", "!", "...", "-", "```", "{}", "[]", "null"))
    alphabet = vocabulary.choose(
        (SYMBOLS, "abcdefghijklmnopqrstuvwxyz", "0123456789abcdef", "{}[]()<>/\\|=+-*&^%$#@!~`'\",.;:?_ \n")
    )
    length = vocabulary.number(1, vocabulary.choose((4, 12, 40, 120, 120, 600)))
    text = "".join(vocabulary.choose(alphabet) for _ in range(length))
    if vocabulary.chance(0.1):
        text = vocabulary.choose((" ", "\n", " \n\t", "a", "\u200b", "0")) * vocabulary.number(1, 60)
    return f"{text} {prompts.filler(vocabulary)}" if vocabulary.chance(0.2) else text


def _glued(vocabulary: Vocabulary) -> str:
    """Return pieces of requests, code and text in a row, as a slip of the clipboard leaves them."""
    parts = [
        _assignment(vocabulary)[: vocabulary.number(3, 40)],
        plain_beyond(vocabulary)[: vocabulary.number(3, 40)],
        prompts.code(vocabulary, 1, 4)[: vocabulary.number(5, 80)],
        vocabulary.words(1, 9),
        prompts.sentence(vocabulary),
    ]
    chosen = vocabulary.random.sample(parts, vocabulary.number(2, 4))
    return vocabulary.choose((" ", " ", "\n")).join(chosen)


def _large_sum(vocabulary: Vocabulary) -> str:
    a, b = vocabulary.number(21, 9999), vocabulary.number(0, 9999)
    if vocabulary.chance(0.5):
        a, b = b, a
    patterns = ("What is {a} {sign} {b}?", "{a} {sign} {b}", "{a}{sign}{b}", "Compute {a} {sign} {b}.")
    return vocabulary.fill(patterns, a=a, b=b, sign=vocabulary.choose("+-"))


def _product(vocabulary: Vocabulary) -> str:
    a, b = vocabulary.figure(), vocabulary.choose([*NUMBER_WORDS.values(), vocabulary.figure()])
    return vocabulary.fill(("What is {a} * {b}?", "{a} times {b}", "{a} / {b}", "{a} x {b} ="), a=a, b=b)


def _many_lines(vocabulary: Vocabulary) -> str:
    """Return lines of words, as lists and letters have them."""
    lines = [prompts.sentence(vocabulary) for _ in range(vocabulary.number(2, 5))]
    return "\n".join(lines)


_REQUESTS: tuple[tuple[Callable[[Vocabulary], str], float], ...] = (
    (plain_beyond, 30),
    (_assignment, 30),
    (_remark, 10),
    (_pasted, 12),
    (_foreign, 5),
    (_noise, 9),
    (_glued, 7),
    (_large_sum, 4),
    (_product, 1),
    (_many_lines, 3),
)
