"""A grammar of text and the rewritten one of the same text inside a JSON string agree."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.grammar.compiler import GrammarCompiler
from engine.request import StructuredOutput
from engine.vocabulary import Vocabulary
from server.model_formats.model_format import PromptError
from server.model_formats.output_grammar.grammar_builder import (
    escaped_grammar,
)
from server.model_formats.tool_calls.json_reader import escaped
from tests.support.builders import examples

COMPILER = GrammarCompiler(Vocabulary(tuple(bytes([byte]) for byte in range(256))))
GRAMMARS = {
    'start: "a\\n" /[^"\\\\]*/ "b\\"c"': r'a\n[^"\\]*b"c',
    "start: /[^\\n]{0,3}/ /\\s/ /\\w+|\\\\d/": r"[^\n]{0,3}\s(\w+|\\d)",
    "start: line+\nline: /.*/ NL\nNL: /\\r?\\n/  // the end of a line": r"(.*\r?\n)+",
    'start: WORD ("," WORD)*\nWORD: /[a-z"\\/]+/i | "\\t"': r'(?i:[a-z"/]+|\t)(,(?i:[a-z"/]+|\t))*',
    "start: /(?:a|[\\x22-\\x30\\n])+?/ /\\x{5c}?/": r"(?:a|[\x22-\x30\n])+\\?",
    'start: "a".."b" LF?\n%import common.LF': r"[ab]\n?",
}
"""Each beside what Python calls it."""
texts = st.text(st.sampled_from('ab"\\\n\t\r/,d0 é😀&'), max_size=6)


def fits(text: str, grammar: str) -> bool:
    matcher: Any = COMPILER.compiled(StructuredOutput(kind="lark", text=grammar)).begin()
    data = list(text.encode())
    return bool(matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting())


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_what_fits_the_grammar_fits_the_rewritten_one_in_its_json_form(grammar: str) -> None:
    rewritten, reference = escaped_grammar(grammar), re.compile(GRAMMARS[grammar])

    @given(texts)
    @examples(200)
    def check(text: str) -> None:
        assert fits(escaped(text), rewritten) == bool(reference.fullmatch(text))
        assert not fits(text, grammar) or reference.fullmatch(text)

    check()


def test_the_grammar_of_patches_can_be_rewritten() -> None:
    grammar = (
        'start: begin hunk+ "*** End Patch" LF?\nbegin: "*** Begin Patch" LF\n'
        'hunk: "*** Add File: " /(.+)/ LF add+\nadd: "+" /(.*)/ LF -> line\n%import common.LF\n'
    )
    patch = '*** Begin Patch\n*** Add File: a "b"\n+\\n\t1\n*** End Patch'
    assert fits(patch, grammar)
    assert fits(json.dumps(patch)[1:-1], escaped_grammar(grammar))
    assert not fits(patch, escaped_grammar(grammar))


NOT_SERVED = ('start: "\\q"', "start: /a/x", "start: /[z-a]/", "start: /^a/", "start: /a/\n%ignore /b/")


@pytest.mark.parametrize("grammar", NOT_SERVED)
def test_what_is_not_understood_is_refused(grammar: str) -> None:
    with pytest.raises(PromptError) as refusal:
        escaped_grammar(grammar)
    assert refusal.value.param == "tools"
