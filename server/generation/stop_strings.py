"""Holds back text that may be the beginning of a stop string. Pure.

The engine decides where an output ends. Until it has decided, text that may turn out to be a stop string
is not streamed.
"""

from collections.abc import Sequence

from engine.request import StopMatch


class StopStringFilter:
    """Text in, text out. The end of the text is held back while it may begin a stop string."""

    def __init__(self, stop_strings: Sequence[str], *, include: bool) -> None:
        """`include`: the stop string itself belongs to the output."""
        self._stop_strings = stop_strings
        self._include = include
        self._held = ""

    def feed(self, text: str) -> str:
        """The text that can be streamed. A complete stop string in the held-back text did not end the output,
        because there is more text.
        """
        if not self._stop_strings:
            return text
        seen = len(self._held)
        whole = self._held + text
        cut = self._first_match(whole, seen)
        self._held = whole[cut:]
        return whole[:cut]

    def close(self, hit: StopMatch | None) -> str:
        """The held-back text, up to the stop string that ended the output."""
        rest, self._held = self._held, ""
        if hit is None:
            return rest
        start = rest.rfind(hit.text)
        if start < 0:
            return rest
        return rest[: start + len(hit.text)] if self._include else rest[:start]

    def _first_match(self, text: str, seen: int) -> int:
        """The start of the first stop string that ends after `seen`, or that may end in text to come.

        The length of the text if there is none.
        """
        first = len(text)
        for stop in self._stop_strings:
            start = text.find(stop, max(0, seen - len(stop) + 1))
            if start >= 0:
                first = min(first, start)
            for size in range(min(len(stop) - 1, len(text)), 0, -1):
                if text.endswith(stop[:size]):
                    first = min(first, len(text) - size)
                    break
        return first
