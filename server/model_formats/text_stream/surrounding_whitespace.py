"""Emits scanned text as deltas without the white space around markup.

Trailing white space is buffered until the next text shows that it is not next to markup. Formats without
markup after the text buffer none.
"""

from collections.abc import Callable
from typing import Literal

from server.model_formats.interface import ReasoningDelta, TextDelta
from server.model_formats.text_stream.scanner import Scanner


class TextEmitter:
    """Appends the scanner's text to its deltas, as answer or as reasoning."""

    def __init__(
        self,
        scanner: Scanner,
        kind: Literal["answer", "reasoning"],
        clean: Callable[[str], str],
        *,
        buffers_space: bool = True,
        strips: bool = False,
    ) -> None:
        """`clean` removes signs of special tokens; `strips` drops leading white space."""
        self._scanner = scanner
        self._reasons = kind == "reasoning"
        self._clean = clean
        self.buffers_space = buffers_space
        self._strips = strips
        self._space: list[str] = []
        self._since = 0
        """Offset of the buffered white space."""

    def add(self, piece: str) -> None:
        """Adds the text that the scanner has just read."""
        end = self._scanner.offset
        self._add(piece, end - len(piece), end)

    def add_marked(self, restore: Callable[[str], str]) -> str:
        """Adds the text since the scanner's mark with special tokens restored; returns it unrestored."""
        text, end = self._scanner.unmark(), self._scanner.offset
        self._add(restore(text), end - len(text), end)
        return text

    def restart(self) -> None:
        """After markup: drops the buffered white space and the white space that follows."""
        self._space = []
        self._strips = True

    def flush(self) -> None:
        """At the end: emits the buffered white space, unless there was no text."""
        if self._space and not self._strips:
            self._emit("".join(self._space), self._scanner.offset)
        self._space = []

    def _add(self, piece: str, start: int, end: int) -> None:
        piece = self._clean(piece)
        visible = piece.rstrip() if self.buffers_space else piece
        if not self._space:
            self._since = start
        if not visible.strip() and self.buffers_space:
            self._space.append(piece)
            return
        text = "".join(self._space) + visible
        if self._strips:
            text = text.lstrip()
            if not text:
                return
        self._space = []
        rest = piece[len(visible) :]
        until = end - len(rest)
        self._strips = False
        self._emit(text, until)
        if rest:
            self._space = [rest]
            self._since = until

    def _emit(self, text: str, end: int) -> None:
        if not text:
            return
        if self._reasons:
            self._scanner.deltas.append(ReasoningDelta(text))
        else:
            self._scanner.deltas.append(TextDelta(text, self._scanner.take_token_indices(self._since, end)))
        self._since = end
