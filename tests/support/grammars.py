"""Grammars in tests: a vocabulary of readable tokens, a model that has it, and a judge of JSON.

The judge is written out here so that what a schema means is not asked of the library under test.
"""

import functools
import json
from pathlib import Path
from typing import Any

from engine.grammar.compiler import GrammarCompiler
from engine.request import EngineRequest, StructuredOutput, StructuredOutputKind
from engine.scheduling.sequence import TokenSequence
from engine.vocabulary import Vocabulary
from tests.support.engines import save_random_model

END = 0
"""The stop id: a special token."""
CALL = 1
"""Another special token."""

_LETTERS = [chr(code) for code in range(0x20, 0x7F)]
_WORDS = [
    '{"',
    '":',
    '",',
    '"}',
    '":"',
    "true",
    "alse",
    "null",
    "12",
    "00",
    ", ",
    "\n",
    "<call",
    "é",
    "日",
]
TOKENS = ("<|end|>", "<|call|>", *_LETTERS, *dict.fromkeys(_WORDS))
SIZE = len(TOKENS)

VOCABULARY = Vocabulary(tuple(token.encode() for token in TOKENS), frozenset({END, CALL}))


def grammar(kind: StructuredOutputKind, content: Any = "") -> StructuredOutput:
    """Content that is not text is written as JSON."""
    return StructuredOutput(kind=kind, text=content if isinstance(content, str) else json.dumps(content))


def schema(content: Any) -> StructuredOutput:
    return grammar("json_schema", content)


def text_of(token_ids: list[int]) -> str:
    """What was said, without the end."""
    return VOCABULARY.spell(token_id for token_id in token_ids if token_id != END).decode()


def ids_of(text: str) -> list[int]:
    """The text, a letter a token."""
    return [TOKENS.index(letter) for letter in text]


@functools.cache
def readable_model() -> Path:
    """A tiny random model whose tokenizer.json has the vocabulary above."""
    folder = save_random_model(
        "Qwen3Config", num_hidden_layers=2, head_dim=32, vocab_size=SIZE, max_position_embeddings=1024
    )
    from tokenizers import AddedToken, Tokenizer, decoders, models

    spelled = {_byte_level(token): place for place, token in enumerate(TOKENS)}
    tokenizer: Any = Tokenizer(models.BPE(vocab=spelled, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(TOKENS[END]), AddedToken(TOKENS[CALL])])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def _byte_level(token: str) -> str:
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in plain]
    return "".join(chr(byte) if byte in plain else chr(256 + rest.index(byte)) for byte in token.encode())


def fits(value: Any, wanted: dict[str, Any]) -> bool:
    """Whether a JSON value fits a schema of the kinds that the tests draw."""
    if "enum" in wanted:
        return value in wanted["enum"]
    if "anyOf" in wanted:
        return any(fits(value, branch) for branch in wanted["anyOf"])
    match wanted["type"]:
        case "object":
            named = wanted["properties"]
            return (
                isinstance(value, dict)
                and set(wanted["required"]) <= value.keys() <= named.keys()
                and all(fits(inner, named[name]) for name, inner in value.items())
            )
        case "array":
            return (
                isinstance(value, list)
                and wanted["minItems"] <= len(value) <= wanted["maxItems"]
                and all(fits(inner, wanted["items"]) for inner in value)
            )
        case "string":
            return isinstance(value, str) and len(value) <= wanted["maxLength"]
        case "integer":
            low, high = wanted["minimum"], wanted["maximum"]
            return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        case "boolean":
            return isinstance(value, bool)
    return value is None


def sequence_of(request: EngineRequest, compiler: GrammarCompiler) -> TokenSequence:
    """The sequence of a request that was accepted with its grammar compiled."""
    compiled = compiler.compiled(request.grammar, request.fairness_key) if request.grammar else None
    return TokenSequence(request, compiled=compiled)
