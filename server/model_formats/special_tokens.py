"""Encodes special tokens as single characters, so that parsers distinguish markup from look-alike text.

In parsed text a special token is one lone surrogate, its sign. The text of other tokens is decoded from UTF-8
and never contains one, so `[TOOL_CALLS]` spelled letter by letter is text. Markup that is no special token of
the tokenizer is matched as plain text.
"""

import re
from collections.abc import Mapping

from tokenizers import Tokenizer

_FIRST = 0xD800
_MOST = 2048
_ANY = re.compile("[\ud800-\udfff]")


class Markup:
    """The special tokens of one tokenizer; those that a format names get a sign."""

    def __init__(self, special: Mapping[str, int]) -> None:
        """`special` maps the texts of special tokens to their ids."""
        self.special = dict(special)
        self.signs: dict[int, str] = {}
        """Signs by token id."""
        longest_first = sorted(special, key=lambda text: (-len(text), text))
        self._find = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._texts: dict[str, str] = {}

    def sign(self, text: str) -> str:
        """The text with each special token replaced by its sign."""
        return self._find.sub(lambda match: self._sign_of(match[0]), text)

    def restore(self, text: str) -> str:
        """The text with each sign replaced by its special token's text."""
        return _ANY.sub(lambda match: self._texts.get(match[0], ""), text) if self.signs else text

    def clean(self, text: str) -> str:
        """The text without signs."""
        return _ANY.sub("", text) if self.signs else text

    def is_sign(self, text: str) -> bool:
        return bool(_ANY.match(text))

    def pieces(self, text: str) -> list[str | int]:
        """The text split at special tokens: strings, and ids of special tokens."""
        split: list[str | int] = []
        start = 0
        for token in self._find.finditer(text):
            split += [text[start : token.start()], self.special[token[0]]]
            start = token.end()
        return [piece for piece in [*split, text[start:]] if piece != ""]

    def _sign_of(self, text: str) -> str:
        token = self.special[text]
        if token not in self.signs:
            assert len(self.signs) < _MOST
            sign = self.signs[token] = chr(_FIRST + len(self.signs))
            self._texts[sign] = text
        return self.signs[token]


def markup_of(tokenizer: Tokenizer) -> Markup:
    added = tokenizer.get_added_tokens_decoder().items()
    return Markup({token.content: token_id for token_id, token in added if token.special and token.content})
