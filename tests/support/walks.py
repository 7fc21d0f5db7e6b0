"""Random outputs that a grammar allows: what a model could write at worst, without any model.

At each step one of the allowed tokens is taken. After a while, what could end strings, lists, elements and
calls is tried first, so that the walk comes to an end.
"""

import functools
import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.grammar.compiler import GrammarCompiler
from engine.request import StructuredOutput
from engine.vocabulary import read_vocabulary
from tests.support.families import folder_of, ids_of, tokenizer_at
from tests.support.family_formats import FAMILIES

PATIENCE = 120
ENDS: tuple[str, ...] = (
    '"',
    "}",
    "]",
    ")",
    "'",
    "\n</parameter>",
    "</parameter>",
    "\n```",
    "\n</function>",
    "\n</invoke>",
)
ENDS += ("</｜DSML｜parameter>", "</arg_value>")
_OWNENDS = ("</steptml:parameter>", "</atem:parameter>", "</｜GCML｜parameter>")
_CUSTOM_ENDS = ('\\nend \\"x\\"', '\nend "x"', 'end \\"x\\"', 'end "x"')


@functools.lru_cache(maxsize=4)
def compiler_of(name: str) -> GrammarCompiler:
    """A family's compiler, which nobody closes: all tests of a worker use it."""
    vocabulary = read_vocabulary(folder_of(name), tokenizer_at(name).get_vocab_size())
    assert vocabulary is not None
    return GrammarCompiler(vocabulary)


@functools.cache
def hints_of(name: str) -> list[list[int]]:
    family = FAMILIES[name]
    texts = [
        *ENDS,
        *_CUSTOM_ENDS,
        *(end for end in _OWNENDS if end in family.call),
        family.close,
        family.close.strip(),
        *family.added,
    ]
    return [ids_of(name, text) for text in texts if text]


def walk(
    compiler: GrammarCompiler,
    grammar: StructuredOutput,
    random_: random.Random,
    hints: Sequence[list[int]],
    begin: Sequence[int] = (),
) -> list[int]:
    """The tokens of one output, up to where the grammar may end; `begin` are its first."""
    end = len(compiler.vocabulary.tokens)
    matcher: Any = compiler.compiled(grammar).begin()
    tokens = list(begin)
    assert matcher.consume_tokens(tokens), matcher.get_error()
    while len(tokens) < 40 * PATIENCE:
        allowed = _allowed(matcher, end)
        if end in allowed and (allowed == {end} or random_.random() < 0.3 or len(tokens) > PATIENCE):
            return tokens
        allowed.discard(end)
        assert allowed, "the grammar allows nothing"
        following = [random_.choice(sorted(allowed))]
        if random_.random() < (0.3 if len(tokens) < PATIENCE else 0.9):
            fitting = [hint for hint in hints if matcher.validate_tokens(hint) == len(hint)]
            following = random_.choice(fitting) if fitting else following
        assert matcher.consume_tokens(following), matcher.get_error()
        tokens += following
    raise AssertionError(f"no end after {len(tokens)} tokens: {compiler.vocabulary.spell(tokens)[:500]!r}")


def _allowed(matcher: Any, end: int) -> set[int]:
    mask = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
    assert not matcher.is_error(), matcher.get_error()
    return set(np.flatnonzero(np.unpackbits(mask, count=end + 1, bitorder="little")).tolist())
