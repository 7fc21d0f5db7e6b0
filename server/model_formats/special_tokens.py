"""Encodes special tokens as single characters, so that parsers distinguish markup from look-alike text. In
parsed text a special token is one lone surrogate, its sign, which text decoded from UTF-8 never contains.
Markup that is no special token of the tokenizer is matched as plain text.
"""

import re
from collections.abc import Collection, Iterable, Mapping

from tokenizers import Tokenizer

_FIRST = 0xD800
_MOST = 2048
_ANY = re.compile("[\ud800-\udfff]")


class Markup:
    """The special tokens of one tokenizer; those that a format names get a sign."""

    def __init__(self, special: Mapping[str, int], in_grammars: Mapping[str, int] | None = None) -> None:
        """`special` maps texts of special tokens to ids; `in_grammars` those of others that grammars name."""
        self.special = dict(special)
        self._in_grammars = {**self.special, **(in_grammars or {})}
        self.signs: dict[int, str] = {}
        self._find = re.compile(any_of(self.special))
        self._find_in_grammars = re.compile(any_of(self._in_grammars))
        self._texts: dict[str, str] = {}

    def sign(self, text: str) -> str:
        return self._find.sub(lambda match: self._sign_of(match[0]), text)

    def restore(self, text: str) -> str:
        return _ANY.sub(lambda match: self._texts.get(match[0], ""), text) if self.signs else text

    def clean(self, text: str) -> str:
        return _ANY.sub("", text) if self.signs and not text.isascii() else text

    def is_sign(self, text: str) -> bool:
        return bool(_ANY.match(text))

    def pieces(self, text: str) -> list[str | int]:
        """The text split at special tokens: strings, and ids of special tokens."""
        return _split(text, self._find, self.special)

    def grammar_pieces(self, text: str) -> list[str | int]:
        """The text split at tokens that grammars name by id."""
        return _split(text, self._find_in_grammars, self._in_grammars)

    def _sign_of(self, text: str) -> str:
        token = self.special[text]
        if token not in self.signs:
            assert len(self.signs) < _MOST
            sign = self.signs[token] = chr(_FIRST + len(self.signs))
            self._texts[sign] = text
        return self.signs[token]


def markup_of(tokenizer: Tokenizer, grammar_token_ids: Collection[int] = ()) -> Markup:
    """`grammar_token_ids` is that of `ModelInfo`."""
    added = tokenizer.get_added_tokens_decoder().items()
    special = {token.content: token_id for token_id, token in added if token.special and token.content}
    named = {token.content: token_id for token_id, token in added if token_id in grammar_token_ids}
    return Markup(special, named)


def any_of(texts: Iterable[str]) -> str:
    """The regular expression of these texts, the longest first."""
    longest_first = sorted(texts, key=lambda text: (-len(text), text))
    return "|".join(map(re.escape, longest_first)) or r"(?!)"


def _split(text: str, find: re.Pattern[str], ids: Mapping[str, int]) -> list[str | int]:
    split: list[str | int] = []
    start = 0
    for token in find.finditer(text):
        split += [text[start : token.start()], ids[token[0]]]
        start = token.end()
    return [piece for piece in [*split, text[start:]] if piece != ""]
