"""Stop strings and the text around them: none is told before it is known whether it ends the answer.

The engine decides where an answer ends; this holds back text that may turn out to be its stop string. Pure.
"""

from collections.abc import Sequence

from engine.request import StopMatch


class StopStringFilter:
    """Text in, text out, the end of it held back as long as it may begin a stop string."""

    def __init__(self, stops: Sequence[str], *, told: bool) -> None:
        """`told`: the stop string itself belongs to the answer."""
        self._stops = stops
        self._told = told
        self._held = ""

    def feed(self, text: str) -> str:
        """What can be told. A whole stop string that was held did not end the answer, as there is more."""
        if not self._stops:
            return text
        seen = len(self._held)
        whole = self._held + text
        cut = min(self._first_open(whole, seen), len(whole))
        self._held = whole[cut:]
        return whole[:cut]

    def close(self, hit: StopMatch | None) -> str:
        """The rest, up to the stop string that ended the answer."""
        rest, self._held = self._held, ""
        if hit is None:
            return rest
        place = rest.rfind(hit.text)
        if place < 0:
            return rest
        return rest[: place + len(hit.text)] if self._told else rest[:place]

    def _first_open(self, text: str, seen: int) -> int:
        """Where the first stop string begins that ends behind what was seen, or may end in text to come."""
        first = len(text)
        for stop in self._stops:
            place = text.find(stop, max(0, seen - len(stop) + 1))
            if place >= 0:
                first = min(first, place)
            for size in range(min(len(stop) - 1, len(text)), 0, -1):
                if text.endswith(stop[:size]):
                    first = min(first, len(text) - size)
                    break
        return first
