"""Output parser of /v1/completions: plain text without reasoning, tool calls or markup. Pure."""

import codecs
from collections.abc import Sequence

from engine.vocabulary import Vocabulary
from server.model_formats.interface import Delta, TextDelta


class PlainParser:
    """An `interface.OutputParser`. Special tokens have no text unless `shows_special`.

    An incomplete UTF-8 character is buffered until its remaining bytes arrive.
    """

    def __init__(
        self, vocabulary: Vocabulary, stop_ids: frozenset[int], *, shows_special: bool = False
    ) -> None:
        self.reasoning_tokens = 0
        self._tokens = vocabulary.tokens
        self._silent = stop_ids if shows_special else vocabulary.special | stop_ids
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._count = 0
        self._pending: list[int] = []
        """Indices of the tokens whose bytes are an incomplete character."""

    def feed(self, token_ids: Sequence[int]) -> list[Delta]:
        texts: list[str] = []
        indices: list[int] = []
        for token in token_ids:
            self._count += 1
            if token in self._silent:
                continue
            self._pending.append(self._count - 1)
            if text := self._decoder.decode(self._tokens[token]):
                texts.append(text)
                indices += self._pending
                self._pending.clear()
        return [TextDelta("".join(texts), tuple(indices))] if texts else []

    def close(self) -> list[Delta]:
        rest = self._decoder.decode(b"", final=True)
        indices, self._pending = tuple(self._pending), []
        return [TextDelta(rest, indices)] if rest else []
