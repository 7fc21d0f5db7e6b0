"""`StopStrings`: finds a request's stop strings in the bytes of its output tokens, across token borders.

Engine thread. Works on bytes, because tokens may split characters.
"""

from collections import deque
from collections.abc import Sequence

from engine.request import StopMatch
from engine.vocabulary import Vocabulary


class StopStrings:
    """The stop strings of one request, and its last tokens in which a match may have begun."""

    def __init__(self, texts: Sequence[str], vocabulary: Vocabulary, earlier: Sequence[int]) -> None:
        """`earlier` is earlier output: matches inside it are ignored, one that begins in it counts."""
        self._texts = {text.encode(): text for text in texts}
        self._longest = max(map(len, self._texts))
        self._spelling = vocabulary.tokens
        self._tail = bytearray()
        self._lengths: deque[int] = deque()
        for piece in reversed(self._last_pieces(earlier)):
            self._append(piece)

    def push(self, token_id: int, *, ends: bool) -> StopMatch | None:
        """Appends a token; returns the match it completes, if `ends` allows one.

        Of several matches the one that is complete first counts, then the longest, so that the result does
        not depend on tokenization.
        """
        token_start = len(self._tail)
        self._append(self._spelling[token_id])
        hits = []
        for string in self._texts if ends else ():
            start = self._tail.find(string, max(0, token_start - len(string) + 1))
            if start >= 0:
                hits.append((start + len(string), start, self._texts[string]))
        hit = self._describe(*min(hits)) if hits else None
        self._drop_old_tokens()
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

    def _drop_old_tokens(self) -> None:
        """Drops tokens in which no pending match can begin."""
        while self._lengths and len(self._tail) - self._lengths[0] >= self._longest - 1:
            del self._tail[: self._lengths.popleft()]

    def _describe(self, end: int, start: int, text: str) -> StopMatch:
        before, skipped = start, 0
        while before >= self._lengths[skipped]:
            before -= self._lengths[skipped]
            skipped += 1
        return StopMatch(text, len(self._lengths) - skipped, before, len(self._tail) - end)
