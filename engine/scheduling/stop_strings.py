"""Finds a request's stop strings in its output, whatever tokens they are spread over.

Engine thread. On bytes, so a string may begin and end within tokens, and a character may be split.
Ignorant of which of its requests end, and of text beyond its bytes.
"""

from collections import deque
from collections.abc import Sequence

from engine.request import StopMatch
from engine.vocabulary import Vocabulary


class StopStrings:
    """The stop strings of one request, and as many of its last tokens as may hold the beginning of one."""

    def __init__(self, texts: Sequence[str], vocabulary: Vocabulary, earlier: Sequence[int]) -> None:
        """`earlier` is output that came before; a string in it has had its time, but may be completed."""
        self._texts = {text.encode(): text for text in texts}
        self._longest = max(map(len, self._texts))
        self._spelling = vocabulary.tokens
        self._tail = bytearray()
        self._lengths: deque[int] = deque()
        for piece in reversed(self._last_pieces(earlier)):
            self._append(piece)

    def push(self, token_id: int, *, ends: bool) -> StopMatch | None:
        """Takes the next token, which completes a string only if it `ends`.

        Of several strings it is the one that is complete first, and of those the longest: what ends the
        text does not depend on how it is cut into tokens.
        """
        begun = len(self._tail)
        self._append(self._spelling[token_id])
        hits = []
        for string in self._texts if ends else ():
            start = self._tail.find(string, max(0, begun - len(string) + 1))
            if start >= 0:
                hits.append((start + len(string), start, self._texts[string]))
        hit = self._describe(*min(hits)) if hits else None
        self._forget()
        return hit

    def _last_pieces(self, token_ids: Sequence[int]) -> list[bytes]:
        pieces: list[bytes] = []
        size = 0
        for token_id in reversed(token_ids):
            if size >= self._longest:
                break
            pieces.append(self._spelling[token_id])
            size += len(pieces[-1])
        return pieces

    def _append(self, piece: bytes) -> None:
        self._tail += piece
        self._lengths.append(len(piece))

    def _forget(self) -> None:
        """Drops the tokens that no string can begin in any more."""
        while self._lengths and len(self._tail) - self._lengths[0] >= self._longest - 1:
            del self._tail[: self._lengths.popleft()]

    def _describe(self, end: int, start: int, text: str) -> StopMatch:
        before, skipped = start, 0
        while before >= self._lengths[skipped]:
            before -= self._lengths[skipped]
            skipped += 1
        return StopMatch(text, len(self._lengths) - skipped, before, len(self._tail) - end)
