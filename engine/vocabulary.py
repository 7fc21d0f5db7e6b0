"""`Vocabulary`: the bytes of each token id, from tokenizer.json; for stop strings and grammars.

Frozen; any thread; no torch. Bytes, because a token may contain a part of a character.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""How SentencePiece writes a space."""
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
"""How it writes a byte that is in no other token."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    tokens: tuple[bytes, ...]
    """By id. A special token has the bytes of its text; an unused id is empty."""
    special: frozenset[int] = frozenset()
    """Special tokens, such as the end of a turn; not part of the visible text."""
    markup: frozenset[int] = frozenset()
    """Added tokens of the form <...> that are not special, such as `<tool_call>` of Qwen. Llguidance's own
    reader of tokenizers (toktrie_hf_tokenizers), which servers use, takes them for special ones."""
    pieces: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """By id: the token as tokenizer.json writes it; empty without such a file."""

    def piece(self, token_id: int) -> str:
        """The token as Hugging Face's tokenizers write it: without a file, in the byte-level alphabet."""
        if self.pieces:
            return self.pieces[token_id]
        if token_id in self.special:
            return self.tokens[token_id].decode(errors="replace")
        letters = _letters_of_bytes()
        return "".join(letters[byte] for byte in self.tokens[token_id])

    def spell(self, token_ids: Iterable[int]) -> bytes:
        return b"".join([self.tokens[token_id] for token_id in token_ids])


def read_vocabulary(folder: Path, size: int) -> Vocabulary | None:
    """The vocabulary of a model with `size` token ids; None where the folder has no tokenizer.json.

    Raises ValueError, with a sentence, for a tokenizer whose tokens have no bytes of their own.
    """
    file = folder / "tokenizer.json"
    if not file.is_file():
        return None
    try:
        tokenizer: Any = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(f"{file} cannot be read: {error}") from error
    kinds = list(_kinds(json.loads(tokenizer.decoder.__getstate__()) if tokenizer.decoder else {}))
    added = tokenizer.get_added_tokens_decoder()
    tokens = [b""] * size
    pieces = [""] * size
    for text, token_id in tokenizer.get_vocab(with_added_tokens=True).items():
        if token_id < size:
            pieces[token_id] = text
            whole = token_id in added
            tokens[token_id] = added[token_id].content.encode() if whole else _bytes_of(text, kinds)
    special = frozenset(token_id for token_id, token in added.items() if token.special and token_id < size)
    markup = frozenset(
        token_id
        for token_id, token in added.items()
        if token_id < size and token.content.startswith("<") and token.content.endswith(">")
    )
    return Vocabulary(tuple(tokens), special, markup - special, tuple(pieces))


def _kinds(decoder: dict[str, Any]) -> Iterator[str]:
    yield decoder.get("type", "")
    for part in decoder.get("decoders", ()):
        yield from _kinds(part)


def _bytes_of(text: str, kinds: list[str]) -> bytes:
    if "ByteLevel" in kinds:
        letters = _byte_letters()
        # A token with a letter outside the alphabet stands for itself, as in the library.
        return bytes([letters[c] for c in text]) if letters.keys() >= set(text) else text.encode()
    if "ByteFallback" in kinds and (byte := _BYTE.fullmatch(text)):
        return bytes([int(byte[1], 16)])
    if {"Metaspace", "Replace", "ByteFallback"} & set(kinds):
        return text.replace(_SPACE, " ").encode()
    raise ValueError(f"Tokens that are decoded by {kinds} have no bytes of their own.")


@cache
def _byte_letters() -> dict[str, int]:
    """The byte-level alphabet: a printable letter for every byte, of which most stand for themselves."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + n): byte for n, byte in enumerate(rest)}


@cache
def _letters_of_bytes() -> dict[int, str]:
    return {byte: letter for letter, byte in _byte_letters().items()}
