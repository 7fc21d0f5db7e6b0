"""Refused grammars: those whose compile would double with each part, and what is kept of them."""

import gc
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from engine.grammar.compiler import GrammarCompiler
from engine.grammar.lark_source import to_lark
from engine.grammar.limits import BadGrammar
from engine.request import RequestRefused, StructuredOutput
from tests.support.grammars import VOCABULARY, grammar, schema


def patterns(count: int, join: Callable[[list[Any]], dict[str, Any]]) -> dict[str, Any]:
    return join([{"type": "string", "pattern": f"x{n}y"} for n in range(count)])


DOUBLING = {
    "patterns of one value": schema(patterns(40, lambda all_: {"allOf": all_})),
    "patterns of one value by reference": schema(
        {
            "$ref": "#/$defs/0",
            "$defs": {
                **{str(n): {"pattern": f"x{n}y", "$ref": f"#/$defs/{n + 1}"} for n in range(40)},
                "40": {"type": "string"},
            },
        }
    ),
    "patterns of one value in alternatives": schema(
        patterns(40, lambda all_: {"allOf": [{"anyOf": [one, {"type": "null"}]} for one in all_]})
    ),
    "multiples of one value": schema(
        {"allOf": [{"type": "integer", "multipleOf": prime} for prime in (97, 101, 103, 107)]}
    ),
    "patterns of names": schema(
        {"type": "object", "patternProperties": {f"^a{n}b$": {"type": "integer"} for n in range(300)}}
    ),
    "patterns that a lark grammar joins": grammar(
        "lark", "start: A\nA: " + " & ".join(f"/.*a.{{{200 + n}}}b.*/" for n in range(12))
    ),
    "a reference to what is no schema": schema({"$ref": "#/x", "x": {"items": True}}),
}


@pytest.mark.parametrize("name", DOUBLING)
def test_a_grammar_whose_parts_multiply_is_refused_before_its_compile(name: str) -> None:
    with pytest.raises(BadGrammar):
        to_lark(DOUBLING[name], {})


class Text(str):
    """Text of which can be seen whether anything still refers to it."""


def test_of_a_refused_grammar_nothing_is_kept_but_the_sentence_and_refusals_alone_are_evicted() -> None:
    compiler = GrammarCompiler(VOCABULARY, cache_bytes=2**20)
    texts: list[weakref.ref[Text]] = []

    def refuse(pattern: str) -> None:
        text = Text(pattern)
        texts.append(weakref.ref(text))
        with suppress(RequestRefused):
            compiler.compiled(StructuredOutput(kind="regex", text=text))

    for n in range(100):
        refuse("(")
        refuse(f"({n}")
    compiler.close()
    gc.collect()
    assert [text() for text in texts if text() is not None] == []
    assert compiler.size <= 2**20
