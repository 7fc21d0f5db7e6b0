"""`StopStrings`: where one of a request's stop strings ends the text of an answer. Pure."""

from collections.abc import Sequence


class StopStrings:
    """Text in, text out. The end of the text is held back while it may begin a stop string."""

    def __init__(self, texts: Sequence[str], *, include: bool) -> None:
        """`include`: the stop string itself belongs to the output."""
        self.match: str | None = None
        self.held = ""
        """The end of the text, which `feed` has not returned yet."""
        self._texts = texts
        self._include = include

    def __bool__(self) -> bool:
        return bool(self._texts)

    def feed(self, text: str, *, ends: bool = True) -> str:
        """The text that can be streamed; none after a match. Of several stops the first complete one counts,
        then the longest, however the text was cut; before `ends` they are text.
        """
        seen = len(self.held)
        whole = self.held + text
        matches = []
        for stop in self._texts if ends else ():
            start = whole.find(stop, max(0, seen - len(stop) + 1))
            if start >= 0:
                matches.append((start + len(stop), start))
        if matches:
            end, start = min(matches)
            self.match, self.held = whole[start:end], ""
            return whole[:end] if self._include else whole[:start]
        cut = min((_beginning(stop, whole) for stop in self._texts), default=len(whole))
        self.held = whole[cut:]
        return whole[:cut]

    def flush(self) -> str:
        """The text that was held back; the next text begins another message."""
        rest, self.held = self.held, ""
        return rest


def _beginning(stop: str, text: str) -> int:
    """The index in `text` where a beginning of `stop` begins that may end in text to come."""
    start = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while start >= 0 and not stop.startswith(text[start:]):
        start = text.find(stop[0], start + 1)
    return start if start >= 0 else len(text)
