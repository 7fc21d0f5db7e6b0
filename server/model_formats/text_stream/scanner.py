"""The text of one answer while it comes: read forwards, piece by piece, by generators that wait for more.

Sans-IO and linear. A reader is a generator that yields whenever it needs more text than there is; whoever
feeds the scanner resumes it. At the end of the text nothing more comes, and no reader yields. Where a
reader can only tell later whether something was markup, it sets a mark: what was read since the mark can
still be told as text. Ignorant of tokens but for their places, of families and of tools.
"""

import re
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TypeVar

from server.model_formats.interface import Delta

T = TypeVar("T")
Reader = Generator[None, None, T]
"""Yields when it needs more text; returns what it has read."""
Give = Callable[[str], None]

MAX_HELD = 4096
"""Characters that may be read before it is certain that a call begins; then they are text."""
SPACE = re.compile(r"\s*")


class Stops:
    """Texts to look for, none of which contains another but at its beginning."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = tuple(sorted(set(texts), key=lambda text: (-len(text), text)))
        self.longest = max(map(len, self.texts), default=0)
        self.search = re.compile("|".join(map(re.escape, self.texts)) or r"(?!)").search
        beginnings = {text[:size] for text in self.texts for size in range(1, len(text))}
        ordered = sorted(beginnings, key=lambda text: (-len(text), text))
        self.search_beginning = re.compile(
            rf"(?:{'|'.join(map(re.escape, ordered))})\Z" if ordered else r"(?!)"
        ).search
        self.growing = beginnings & set(self.texts)
        """Those that another one begins with."""

    def held_from(self, text: str, start: int) -> int:
        """Where, at the end of the text, something begins that could become one of them."""
        found = self.search_beginning(text, max(start, len(text) - self.longest + 1))
        return found.start() if found else len(text)


class Scanner:
    """The text so far, and where in it its reader stands."""

    def __init__(self) -> None:
        self.deltas: list[Delta] = []
        """What was read since `take`."""
        self.in_reasoning = False
        """The next text belongs to the reasoning, as far as is known."""
        self.ended = False
        self._text = ""
        self._at = 0
        self._before = 0
        """How much text there was before what is kept in `_text`."""
        self._mark: int | None = None
        self._starts: deque[tuple[int, int]] = deque()
        """Where in all the text a token begins, and its place; those that may still be claimed."""

    def feed(self, text: str, tokens: Iterable[int]) -> None:
        """More text, that of the tokens at these places."""
        size = self._before + len(self._text)
        self._starts.extend((size, token) for token in tokens)
        kept = self._at if self._mark is None else min(self._at, self._mark - self._before)
        self._text = self._text[kept:] + text
        self._before += kept
        self._at -= kept

    @property
    def offset(self) -> int:
        """How much text was read."""
        return self._before + self._at

    def take(self) -> list[Delta]:
        deltas, self.deltas = self.deltas, []
        return deltas

    def claim(self, start: int, end: int) -> tuple[int, ...]:
        """The places of the tokens that begin within this stretch. Stretches must rise."""
        claimed = []
        while self._starts and self._starts[0][0] < end:
            begin, token = self._starts.popleft()
            if begin >= start:
                claimed.append(token)
        return tuple(claimed)

    def mark(self, back: int = 0) -> None:
        """What is read from here on, or from so many characters before, may turn out to be text."""
        self._mark = self.offset - back

    @property
    def marked(self) -> bool:
        return self._mark is not None

    @property
    def overlong(self) -> bool:
        """More was read since the mark than may be held back."""
        return self._mark is not None and self.offset - self._mark > MAX_HELD

    def unmark(self) -> str:
        """What was read since the mark, which is gone."""
        assert self._mark is not None
        text = self._text[self._mark - self._before : self._at]
        self._mark = None
        return text

    def put_back(self, count: int) -> None:
        """The last characters read are to be read again."""
        self._at -= count

    def peek(self) -> Reader[str]:
        """The next character; nothing at the end."""
        while self._at >= len(self._text):
            if self.ended:
                return ""
            yield
        return self._text[self._at]

    def skip(self) -> None:
        """Reads the character that `peek` gave."""
        self._at += 1

    def skip_space(self) -> Reader[None]:
        while True:
            self._at = _end_of(SPACE, self._text, self._at)
            if self._at < len(self._text) or self.ended:
                return
            yield

    def accept(self, *texts: str) -> Reader[str]:
        """Reads the first of these that is next; gives nothing if none is. Longer ones come first."""
        while True:
            waits = False
            for text in texts:
                if self._text.startswith(text, self._at):
                    return self._read_to(self._at + len(text))
                rest = len(self._text) - self._at
                if rest < len(text) and text.startswith(self._text[self._at :]):
                    waits = True
                    break
            if not waits or self.ended:
                return ""
            yield

    def skip_rest(self) -> None:
        """Reads all that there is."""
        self._at = len(self._text)

    def drop_half_of(self, *texts: str) -> None:
        """Reads, at the end, a rest that is the beginning of one of these."""
        rest = self._text[self._at :]
        if self.ended and rest and any(text.startswith(rest) for text in texts):
            self._at = len(self._text)

    def take_while(self, pattern: re.Pattern[str], limit: int) -> Reader[str]:
        """As many characters as the pattern of one character fits; at most one more than `limit`."""
        taken: list[str] = []
        count = 0
        while True:
            end = self._at
            while end < len(self._text) and count <= limit and pattern.match(self._text, end):
                end += 1
                count += 1
            taken.append(self._read_to(end))
            if self._at < len(self._text) or self.ended or count > limit:
                return "".join(taken)
            yield

    def copy_until(self, stops: Stops, give: Give, *, drops_half: bool = False) -> Reader[str]:
        """Gives the text up to one of the stops, which is read and returned; up to the end if none comes.

        It `drops_half` of a stop, if the end cuts one off.
        """
        while True:
            found = stops.search(self._text, self._at)
            if found and not self.ended and found.end() == len(self._text) and found[0] in stops.growing:
                end, found = found.start(), None
            elif found or (self.ended and not drops_half):
                end = found.start() if found else len(self._text)
            else:
                end = stops.held_from(self._text, self._at)
            if end > self._at:
                give(self._read_to(end))
            if found:
                self._at = found.end()
                return found[0]
            if self.ended:
                self._at = len(self._text)
                return ""
            yield

    def copy_run(self, pattern: re.Pattern[str], give: Give) -> Reader[bool]:
        """Gives what the pattern, which must not need to see ahead, fits here; True at something else."""
        while True:
            end = _end_of(pattern, self._text, self._at)
            if end > self._at:
                give(self._read_to(end))
            if self._at < len(self._text):
                return True
            if self.ended:
                return False
            yield

    def _read_to(self, end: int) -> str:
        text = self._text[self._at : end]
        self._at = end
        return text


def _end_of(pattern: re.Pattern[str], text: str, start: int) -> int:
    found = pattern.match(text, start)
    return found.end() if found else start


def bounded(scanner: Scanner, reader: Reader[None]) -> Iterator[None]:
    """Goes on with the reader until it returns, or until more is held back than may be."""
    for _ in reader:
        if scanner.overlong:
            reader.close()
            return
        yield
