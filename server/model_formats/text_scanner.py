"""`Scanner` of an output's text, read by generators as it arrives; `TextEmitter`, which trims white space.
Sans-IO, in linear time. A reader yields when it needs more text; the caller feeds the scanner and resumes it.
Once `ended` is set no reader yields. A reader that cannot know yet whether the text is markup sets a mark,
since which it can still be emitted as text.
"""

import re
from collections import deque
from collections.abc import Callable, Generator, Iterable
from functools import lru_cache
from typing import Literal, TypeVar

from server.model_formats.model_format import Delta, ReasoningDelta, TextDelta
from server.model_formats.special_tokens import any_of

T = TypeVar("T")
Reader = Generator[None, None, T]
"""A generator that yields when it needs more text and returns its result."""
TextSink = Callable[[str], None]

_Kind = Literal["answer", "reasoning"]

MAX_BUFFERED = 4096
"""Characters buffered while a tool call is possible but not certain; beyond that they are text."""
SPACE = re.compile(r"\s*")


class StopTexts:
    """Texts to search for; one may be a prefix of another, but not contain it elsewhere."""

    def __init__(self, texts: Iterable[str]) -> None:
        known = frozenset(texts)
        self.longest = max(map(len, known), default=0)
        self.search = re.compile(any_of(known)).search
        self._beginnings = frozenset(text[:size] for text in known for size in range(1, len(text)))
        self.search_beginning = re.compile(rf"(?:{any_of(self._beginnings)})\Z").search
        self.first_characters = frozenset(text[0] for text in known)

    def may_grow(self, text: str, start: int) -> bool:
        """Whether the text from `start` on, where a text was found, may yet become a longer one."""
        return len(text) - start < self.longest and text[start:] in self._beginnings

    def partial_match_start(self, text: str, start: int) -> int:
        """The index of an incomplete match at the end of the text; the text's length without one."""
        match = self.search_beginning(text, max(start, len(text) - self.longest + 1))
        return match.start() if match else len(text)


@lru_cache(maxsize=256)
def stop_at(*texts: str) -> StopTexts:
    return StopTexts(texts)


class Scanner:
    """The buffered text and the reader's position in it."""

    def __init__(self) -> None:
        self.deltas: list[Delta] = []
        self.in_reasoning = False
        """Whether the next text is reasoning, as far as is known yet."""
        self.ended = False
        self._text = ""
        self._at = 0
        self._before = 0
        """Length of the text that was dropped before `_text`."""
        self._mark: int | None = None
        self._held: list[str] | None = None
        """While deltas are withheld: the text since `_held_from`, an offset in the whole text."""
        self._held_from = 0
        self._held_again = False
        """Whether withheld text was put back, which is done once: the time stays linear."""
        self.tokens_of_calls = 0
        """Tokens that were counted as reasoning and turned out to be calls or answer."""
        self._given: list[Delta] = []
        """While deltas are withheld: those before."""
        self._starts: deque[tuple[int, int]] = deque()
        """(offset in the whole text, token index) of tokens that no delta has yet."""
        self._copies_until: frozenset[str] | None = None
        """Set while the reader copies text and has read all of it: the characters that may end this."""

    def feed(self, text: str, tokens: Iterable[int]) -> bool:
        """Appends the text of tokens with these indices; False if it may be read with the next one."""
        if self._held is not None:
            self._held.append(text)
        size = self._before + len(self._text)
        for token in tokens:
            self._starts.append((size, token))
        if self._mark is None and self._at == len(self._text):
            self._before += self._at
            self._text, self._at = text, 0
        else:
            dropped = self._at if self._mark is None else min(self._at, self._mark - self._before)
            self._text = self._text[dropped:] + text
            self._before += dropped
            self._at -= dropped
        return self._copies_until is None or not self._copies_until.isdisjoint(text)

    @property
    def offset(self) -> int:
        return self._before + self._at

    def take_deltas(self) -> list[Delta]:
        if self._held is not None:
            deltas, self._given = self._given, []
        else:
            deltas, self.deltas = self.deltas, []
        return deltas

    def hold(self, back: int) -> None:
        """Withholds the deltas from here on, and keeps the text since `back` characters before."""
        self._held, self._held_from = [self._text[self._at - back :]], self.offset - back
        self._given, self.deltas = self.deltas, []

    def release(self, end: int) -> None:
        """Gives the withheld deltas, which up to the offset `end` are those of calls."""
        self._held = None
        self.deltas = self._given + self.deltas
        self.tokens_of_calls += len(self.take_token_indices(self._held_from, end))

    def recall(self, end: int) -> str:
        """Drops the withheld deltas; returns the text up to the offset `end` that they came from."""
        assert self._held is not None
        text = "".join(self._held)[: end - self._held_from]
        self._held = None
        self.deltas = self._given
        return text

    @property
    def pieces(self) -> int:
        return len(self._held or ())

    def find_held(
        self, tags: StopTexts, openers: StopTexts, piece: int, *, cut: bool
    ) -> re.Match[str] | None:
        """The first of the `tags` since this piece of withheld text, before an opener unless it is `cut`."""
        if self._held is None or self._held_again:
            return None
        text = "".join(self._held[max(0, piece - 1) :])
        read = len(text) - len(self._text) + self._at
        tag = tags.search(text, 0, read)
        return tag if tag and (cut or openers.search(text, tag.end(), read)) else None

    def put_back(self, tag: re.Match[str]) -> str:
        """Drops the withheld deltas and has the text behind the tag read again; returns that before it."""
        text = "".join(self._held or ())
        behind = tag.string[tag.end() :]
        self._held, self._held_again, self.deltas = None, True, self._given
        self._before += len(self._text) - len(behind)
        self._text, self._at = behind, 0
        self._mark = None
        self.tokens_of_calls += sum(start >= self._before for start, _ in self._starts)
        return text[: len(text) - len(behind) - len(tag[0])]

    def take_token_indices(self, start: int, end: int) -> tuple[int, ...]:
        """The indices of the tokens that begin in [start, end). Calls must come in ascending order."""
        indices = []
        while self._starts and self._starts[0][0] < end:
            begin, token = self._starts.popleft()
            if begin >= start:
                indices.append(token)
        return tuple(indices)

    def mark(self, back: int = 0) -> None:
        """Marks the position, or `back` characters before it: text read since may still be emitted."""
        self._mark = self.offset - back

    @property
    def marked(self) -> bool:
        return self._mark is not None

    @property
    def read_since_mark(self) -> int:
        return 0 if self._mark is None else self.offset - self._mark

    def unmark(self) -> str:
        """Removes the mark; returns the text read since."""
        assert self._mark is not None
        text = self._text[self._mark - self._before : self._at]
        self._mark = None
        return text

    def drop_mark(self) -> None:
        """Removes the mark, if there is one: the text read since is not emitted."""
        self._mark = None

    def unread(self, count: int) -> None:
        self._at -= count

    def peek(self) -> Reader[str]:
        """The next character, not consumed; empty at the end."""
        while self._at >= len(self._text):
            if self.ended:
                return ""
            yield
        return self._text[self._at]

    def skip(self) -> None:
        self._at += 1

    def skip_space(self) -> Reader[None]:
        while True:
            if space := SPACE.match(self._text, self._at):
                self._at = space.end()
            if self._at < len(self._text) or self.ended:
                return
            yield

    def accept(self, *texts: str) -> Reader[str]:
        """Consumes and returns the first of `texts` that comes next, or returns "". Longer ones first."""
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
        self._at = len(self._text)

    def drop_half_of(self, *texts: str) -> None:
        """Consumes a rest at the end that is a proper prefix of one of `texts`."""
        rest = self._text[self._at :]
        if self.ended and rest and any(text.startswith(rest) for text in texts):
            self._at = len(self._text)

    def take_while(self, pattern: re.Pattern[str], limit: int) -> Reader[str]:
        """The characters that match the one-character pattern; at most `limit` + 1."""
        parts: list[str] = []
        count = 0
        while True:
            end = self._at
            while end < len(self._text) and count <= limit and pattern.match(self._text, end):
                end += 1
                count += 1
            parts.append(self._read_to(end))
            if self._at < len(self._text) or self.ended or count > limit:
                return "".join(parts)
            yield

    def copy_until(self, stops: StopTexts, sink: TextSink, *, drops_half: bool = False) -> Reader[str]:
        """Passes the text before a stop to `sink`; returns the stop or "". Half a stop may be dropped."""
        while True:
            match = stops.search(self._text, self._at)
            if match and not self.ended and stops.may_grow(self._text, match.start()):
                end, match = match.start(), None
            elif match or (self.ended and not drops_half):
                end = match.start() if match else len(self._text)
            else:
                end = stops.partial_match_start(self._text, self._at)
            if end > self._at:
                sink(self._read_to(end))
            if match:
                self._at = match.end()
                return match[0]
            if self.ended:
                self._at = len(self._text)
                return ""
            if self._at == len(self._text) and self._mark is None:
                self._copies_until = stops.first_characters
            yield
            self._copies_until = None

    def copy_run(self, pattern: re.Pattern[str], sink: TextSink) -> Reader[bool]:
        """Passes matching text to `sink`; True before other text. The pattern must need no lookahead."""
        while True:
            match = pattern.match(self._text, self._at)
            if match and match.end() > self._at:
                self._at = match.end()
                sink(match[0])
            if self._at < len(self._text):
                return True
            if self.ended:
                return False
            yield

    def _read_to(self, end: int) -> str:
        text = self._text[self._at : end]
        self._at = end
        return text


class TextEmitter:
    """Appends the scanner's text to its deltas, as answer or as reasoning."""

    def __init__(self, scanner: Scanner, kind: _Kind, clean: Callable[[str], str]) -> None:
        """`clean` removes signs of special tokens."""
        self._scanner = scanner
        self._kind = kind
        self._clean = clean
        self.buffers_space = True
        self._strips = False
        self._space: list[str] = []
        self._since = 0
        """Offset of the buffered white space."""
        self.silent = True

    def add(self, piece: str) -> None:
        """Adds text that the scanner has just read, or read before, with special tokens restored."""
        end = self._scanner.offset
        self._add(piece, end - len(piece), end)

    def add_marked(self, restore: Callable[[str], str]) -> str:
        """Adds the text since the scanner's mark with special tokens restored; returns it unrestored."""
        text, end = self._scanner.unmark(), self._scanner.offset
        self._add(restore(text), end - len(text), end)
        return text

    def another(self) -> "TextEmitter":
        """A new emitter of the same kind, for text that may have to be taken back."""
        return TextEmitter(self._scanner, self._kind, self._clean)

    def restart(self) -> None:
        """Drops the buffered white space and the white space that follows; called after markup."""
        self._space = []
        self._strips = True

    def flush(self) -> None:
        """Emits the buffered white space, unless there was no text; called at the end."""
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
        self.silent = False
        if self._kind == "reasoning":
            self._scanner.deltas.append(ReasoningDelta(text))
        else:
            self._scanner.deltas.append(TextDelta(text, self._scanner.take_token_indices(self._since, end)))
        self._since = end
