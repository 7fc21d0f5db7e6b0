"""Text on its way to becoming deltas: the white space at its ends is kept back until it is known whose it is.

Around markup, white space belongs to neither side. Where there is no markup to come, none is kept back.
"""

from collections.abc import Callable
from typing import Literal

from server.model_formats.interface import ReasoningDelta, TextDelta
from server.model_formats.text_stream.scanner import Scanner


class Prose:
    """Tells pieces of text as the scanner reads them."""

    def __init__(
        self,
        scanner: Scanner,
        kind: Literal["answer", "reasoning"],
        clean: Callable[[str], str],
        *,
        holds: bool = True,
        strips: bool = False,
    ) -> None:
        """`clean` takes out what is never shown; `strips` drops the white space that comes first."""
        self._scanner = scanner
        self._reasons = kind == "reasoning"
        self._clean = clean
        self.holds = holds
        self._strips = strips
        self._space: list[str] = []
        self._since = 0
        """Where the held white space begins."""

    def add(self, piece: str) -> None:
        """What the scanner has just read."""
        end = self._scanner.offset
        self._add(piece, end - len(piece), end)

    def add_marked(self, restore: Callable[[str], str]) -> str:
        """What was read since the scanner's mark, as a reader would see it; returns that text."""
        text, end = self._scanner.unmark(), self._scanner.offset
        self._add(restore(text), end - len(text), end)
        return text

    def restart(self) -> None:
        """Markup came: held white space is gone, and that which follows will be."""
        self._space = []
        self._strips = True

    def flush(self) -> None:
        """Nothing comes any more: held white space is the text's own, if there is a text."""
        if self._space and not self._strips:
            self._tell("".join(self._space), self._scanner.offset)
        self._space = []

    def _add(self, piece: str, start: int, end: int) -> None:
        piece = self._clean(piece)
        visible = piece.rstrip() if self.holds else piece
        if not self._space:
            self._since = start
        if not visible.strip() and self.holds:
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
        self._tell(text, until)
        if rest:
            self._space = [rest]
            self._since = until

    def _tell(self, text: str, end: int) -> None:
        if not text:
            return
        if self._reasons:
            self._scanner.deltas.append(ReasoningDelta(text))
        else:
            self._scanner.deltas.append(TextDelta(text, self._scanner.claim(self._since, end)))
        self._since = end
