"""A seeded source of random words, names, numbers and phrases.

Most words are invented. A model that has seen each word only once cannot learn answers by heart;
it has to learn to copy from the conversation, which is what the demo is for. The source knows
nothing about conversations except when one begins.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Sequence
from typing import TypeVar

from demo.words import DICTIONARY, ENDINGS, ONSETS, SYMBOLS, VOWELS

T = TypeVar("T")

#: Used until a tokenizer exists whose own pieces can be glued.
FIRST_PIECES = ("ba", "ton", "rek", "su", "mi", "ler", "ov", "ash")
#: Words that mean something between others, and nothing within one.
_INNER_WORDS = ("and", "and", "in", "on", "is", "to", "with", "for", "ten", "one")


class Vocabulary:
    """Random text from one seed: the same seed and pieces give the same words for ever."""

    def __init__(self, seed: int | str, pieces: Sequence[str] = FIRST_PIECES) -> None:
        """Start from a seed; ``pieces`` are the tokenizer's word pieces, so that each is copied."""
        self.random = random.Random(seed)
        self._pieces = tuple(pieces)
        self._shared_pieces = self._pieces[:6]
        self._word_kinds: tuple[tuple[Callable[[], str], int], ...] = (
            (self._ordinary, 34),
            (self.invented, 22),
            (self.glued, 14),
            (self._lookalike, 13),
            (self.letters, 7),
            (self._digits, 5),
            (self._symbols, 2),
            (self._shouted, 3),
        )
        self._name_kinds: tuple[tuple[Callable[[], str], int], ...] = (
            (self._long_invented, 50),
            (self.glued, 25),
            (self._lookalike, 15),
            (self.letters, 10),
            (self._joined, 12),
        )

    def begin_conversation(self) -> None:
        """Choose the few pieces that look-alike words of this conversation are built from.

        Words that share pieces cannot be copied by their last token alone: the model has to look
        further back, as it must with real names.
        """
        self._shared_pieces = tuple(self.choose(self._pieces) for _ in range(self.number(4, 8)))

    def choose(self, options: Sequence[T]) -> T:
        """Return one of the options."""
        return self.random.choice(options)

    def choose_weighted(self, options: Sequence[tuple[T, float]]) -> T:
        """Return one of (option, weight)."""
        return self.random.choices([o for o, _ in options], [w for _, w in options])[0]

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self.random.random() < probability

    def number(self, low: int, high: int) -> int:
        """Return a number from low to high, both included."""
        return self.random.randint(low, high)

    def fill(self, patterns: Sequence[str], **values: object) -> str:
        """Choose one of the patterns and put the values in its {places}."""
        return self.choose(patterns).format(**values)

    def word(self) -> str:
        """Return a word of any kind: ordinary, invented, digits, foreign letters or emoji."""
        return self.choose_weighted(self._word_kinds)()

    def words(self, low: int, high: int) -> str:
        """Return low to high words with spaces between them."""
        return " ".join(self.word() for _ in range(self.number(low, high)))

    def phrase(self, low: int = 1, high: int = 6) -> str:
        """Return low to high words, now and then with a capital, a comma or an end mark."""
        text = self.words(low, high)
        if self.chance(0.25):
            text = text[:1].upper() + text[1:]
        if self.chance(0.15):
            text += self.choose("!?.")
        if text.count(" ") > 1 and self.chance(0.15):
            text = text.replace(" ", ", ", 1)
        return text

    def plain_phrase(self, low: int = 1, high: int = 4) -> str:
        """Return a phrase that does not end a sentence."""
        return self.phrase(low, high).rstrip("?!.")

    def stammer(self, low: int, high: int) -> str:
        """Return a phrase that uses some of its words more than once.

        "a b a c" cannot be copied by asking what followed the last word: two things did.
        """
        count = self.number(low, high)
        stock = [self.word() for _ in range(max(2, count // self.number(2, 3)))]
        return " ".join(self.choose(stock) for _ in range(count))

    def doubled(self, low: int, high: int) -> str:
        """Return low to high words of which one or two are said twice in a row, once over.

        "a a b" cannot be copied by what followed the last word: once it is itself, once it is not.
        """
        words = [self.word() for _ in range(self.number(low, high))]
        for _ in range(self.choose((1, 1, 2))):
            at = self.number(1, len(words) - 1)
            words[at] = words[at - 1]
        return " ".join(words)

    def name(self, known: Sequence[str] = ()) -> str:
        """Return a capitalised name, three times in ten a known one if any are given."""
        if known and self.chance(0.3):
            return self.choose(known)
        return self.choose_weighted(self._name_kinds)().capitalize()

    def invented(self, syllables: int | None = None) -> str:
        """Return a pronounceable word that means nothing."""
        count = syllables or self.choose((1, 2, 2, 3))
        return "".join(self.choose(ONSETS) + self.choose(VOWELS) + self.choose(ENDINGS) for _ in range(count))

    def letters(self, longest: int = 8) -> str:
        """Return a run of letters without sense."""
        return "".join(self.choose(string.ascii_lowercase) for _ in range(self.number(2, longest)))

    def figure(self) -> str:
        """Return a number of one to six digits, small ones more often."""
        return str(self.number(0, 10 ** self.choose((1, 2, 2, 3, 4, 5))))

    def _ordinary(self) -> str:
        return self.choose(DICTIONARY)

    def _long_invented(self) -> str:
        return self.invented(self.choose((2, 2, 3)))

    def glued(self) -> str:
        """Return a few of the tokenizer's own word pieces in a row."""
        return "".join(self.choose(self._pieces) for _ in range(self.number(2, 4)))

    def _lookalike(self) -> str:
        return "".join(self.choose(self._shared_pieces) for _ in range(self.number(2, 4)))

    def _joined(self) -> str:
        """Return a word with a common one in its middle, as "Alexander" has "and"."""
        return self.invented(1) + self.choose(_INNER_WORDS) + self.choose(self._pieces)

    def _digits(self) -> str:
        return str(self.number(0, 99_999))

    def _symbols(self) -> str:
        return "".join(self.choose(SYMBOLS) for _ in range(self.number(1, 4)))

    def _shouted(self) -> str:
        return self.invented().upper()
