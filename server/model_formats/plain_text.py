"""Text that no model format has a part in: what a model says to a prompt that was given as it is. Pure."""

import codecs
from collections.abc import Sequence

from engine.vocabulary import Vocabulary
from server.model_formats.interface import Delta, TextDelta


class PlainParser:
    """See `base.Parser`. Control tokens have no text unless they are shown; half characters wait for their
    rest.
    """

    def __init__(
        self, vocabulary: Vocabulary, stop_ids: frozenset[int], *, shows_special: bool = False
    ) -> None:
        self.reasoning_tokens = 0
        self._tokens = vocabulary.tokens
        self._silent = stop_ids if shows_special else vocabulary.special | stop_ids
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._count = 0
        self._untold: list[int] = []
        """The places of tokens whose text is not whole."""

    def feed(self, token_ids: Sequence[int]) -> list[Delta]:
        told: list[str] = []
        places: list[int] = []
        for token in token_ids:
            self._count += 1
            if token in self._silent:
                continue
            self._untold.append(self._count - 1)
            if text := self._decoder.decode(self._tokens[token]):
                told.append(text)
                places += self._untold
                self._untold.clear()
        return [TextDelta("".join(told), tuple(places))] if told else []

    def close(self) -> list[Delta]:
        rest = self._decoder.decode(b"", final=True)
        places, self._untold = tuple(self._untold), []
        return [TextDelta(rest, places)] if rest else []
