"""Special tokens as characters: how markup is told from text that only looks like it.

In the text that parsers read, a special token is one lone surrogate. The text of other tokens never has
any, for it is decoded from UTF-8, so a model that spells `[TOOL_CALLS]` letter by letter has said text.
Markup that is no special token of the tokenizer at hand is text everywhere, and found as such.
"""

import re
from collections.abc import Mapping

from tokenizers import Tokenizer

_FIRST = 0xD800
_MOST = 2048
_ANY = re.compile("[\ud800-\udfff]")


class Markup:
    """The special tokens of one tokenizer, as far as formats name them."""

    def __init__(self, special: Mapping[str, int]) -> None:
        """`special` are the special tokens' texts and ids."""
        self.special = dict(special)
        self.signs: dict[int, str] = {}
        """By token id: the character that stands for it."""
        longest_first = sorted(special, key=lambda text: (-len(text), text))
        self._find = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._texts: dict[str, str] = {}

    def sign(self, text: str) -> str:
        """The text with a sign in place of each special token in it."""
        return self._find.sub(lambda found: self._sign_of(found[0]), text)

    def restore(self, text: str) -> str:
        """The text with special tokens written out."""
        return _ANY.sub(lambda found: self._texts.get(found[0], ""), text) if self.signs else text

    def clean(self, text: str) -> str:
        """The text without special tokens."""
        return _ANY.sub("", text) if self.signs else text

    def is_sign(self, text: str) -> bool:
        return bool(_ANY.match(text))

    def pieces(self, text: str) -> list[str | int]:
        """The text cut at special tokens, which are given as ids."""
        found: list[str | int] = []
        start = 0
        for token in self._find.finditer(text):
            found += [text[start : token.start()], self.special[token[0]]]
            start = token.end()
        return [piece for piece in [*found, text[start:]] if piece != ""]

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
