"""JSON values in a text that is still coming: copied, decoded and checked piece by piece, in linear time.

Readers for `scanner.Scanner`. What they copy is what the model wrote; nothing is kept but what a cut-off
escape needs. A lone surrogate, by which `markup` stands for a special token, ends every value.
"""

import json
import re
from collections.abc import Iterator

from server.model_formats.text_stream.scanner import Reader, Scanner, TextSink

_OUTSIDE = re.compile(r"[\s\w:,.+\-]+")
"""Of JSON, between strings and brackets."""
_IN_STRING = re.compile(r'[^"\\\ud800-\udfff]+')
_SCALAR = re.compile(r"[\w.+\-]+")
_ONE = re.compile(r"[^\ud800-\udfff]")
_UNIT = re.compile(r"[^\\]+|\\u([0-9a-fA-F]{4})|\\(?!u)(.)|\\u(?![0-9a-fA-F]{0,3}\Z)", re.DOTALL)
_SHORT = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_CUSTOM_HEAD = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_MAX_HEAD = 64
_INSIDE = re.compile(r'(?:[^"\\]|\\.)*', re.DOTALL)


def escaped(text: str) -> str:
    """The text as it stands in a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def copy_json(scanner: Scanner, give: TextSink) -> Reader[bool]:
    """Gives a JSON value as it stands; False if the text, or what can be JSON, ends before it does."""
    first = yield from scanner.peek()
    if first == '"':
        give(first)
        scanner.skip()
        return (yield from _copy_string(scanner, give))
    if first and first in "{[":
        return (yield from _copy_nested(scanner, give))
    copied: list[str] = []
    more = yield from scanner.copy_run(_SCALAR, copied.append)
    give("".join(copied))
    return more and bool(copied)


def copy_string(scanner: Scanner, give: TextSink) -> Reader[bool]:
    """Gives what a JSON string, from behind its first quote, says; False if it does not end."""
    decoder = StringDecoder(give)

    def add(piece: str) -> None:
        if piece != '"':
            decoder.feed(piece)

    whole = yield from _copy_string(scanner, add)
    decoder.close()
    return whole


def _copy_string(scanner: Scanner, give: TextSink) -> Reader[bool]:
    """The rest of a string as it stands, its last quote included."""
    while True:
        if not (yield from scanner.copy_run(_IN_STRING, give)):
            return False
        character = yield from scanner.peek()
        if character not in '"\\':
            return False
        scanner.skip()
        if character == '"':
            give(character)
            return True
        following = yield from scanner.peek()
        if not following or not _ONE.match(following):
            return False
        scanner.skip()
        give(character + following)


def _copy_nested(scanner: Scanner, give: TextSink) -> Reader[bool]:
    depth = 0
    while True:
        if not (yield from scanner.copy_run(_OUTSIDE, give)):
            return False
        character = yield from scanner.peek()
        if character not in '{}[]"':
            return False
        scanner.skip()
        give(character)
        if character == '"':
            if not (yield from _copy_string(scanner, give)):
                return False
        else:
            depth += 1 if character in "{[" else -1
            if depth == 0:
                return True


class StringDecoder:
    """The inside of a JSON string → what it says. Half an escape waits for its other half."""

    def __init__(self, give: TextSink) -> None:
        self._give = give
        self._held = ""

    def feed(self, piece: str) -> None:
        if "\\" not in piece and not self._held:
            if piece:
                self._give(piece)
            return
        text = self._held + piece
        self._held = ""
        said = "".join(self._units(text))
        if said:
            self._give(said)

    def close(self) -> None:
        """Gives an escape that was cut off as it stands."""
        if self._held:
            text, self._held = self._held, ""
            self._give("\ufffd" if len(text) >= 6 else text)

    def _units(self, text: str) -> Iterator[str]:
        at = 0
        while at < len(text):
            unit = _UNIT.match(text, at)
            if unit is None:
                self._held = text[at:]
                return
            if unit[1] is None:
                yield _SHORT.get(unit[2], unit[2]) if unit[2] else unit[0]
                at = unit.end()
                continue
            code = int(unit[1], 16)
            if 0xD800 <= code < 0xDC00:
                low = _UNIT.match(text, unit.end())
                if low is None and "\\u".startswith(text[unit.end() :][:2]):
                    self._held = text[at:]
                    return
                if low and low[1] and 0xDC00 <= int(low[1], 16) < 0xE000:
                    yield chr(0x10000 + ((code - 0xD800) << 10) + int(low[1], 16) - 0xDC00)
                    at = low.end()
                    continue
            yield "\ufffd" if 0xD800 <= code < 0xE000 else chr(code)
            at = unit.end()


class CustomInput:
    """The arguments of a custom tool, `{"input": "..."}` → the input. Other JSON is given as it stands."""

    def __init__(self, give: TextSink) -> None:
        self._give = give
        self._decoder: StringDecoder | None = None
        self._head = self._half = ""
        self._state = "head"

    def feed(self, piece: str) -> None:
        if self._state == "head":
            self._head += piece
            found = _CUSTOM_HEAD.match(self._head)
            if found:
                self._state, self._decoder = "inside", StringDecoder(self._give)
                piece, self._head = self._head[found.end() :], ""
            elif len(self._head) > _MAX_HEAD:
                self._state = "plain"
                piece, self._head = self._head, ""
        if self._state == "plain":
            self._give(piece)
        elif self._state == "inside":
            self._read_inside(piece)

    def close(self) -> None:
        if self._head:
            self._give(self._head)
        if self._decoder is not None:
            self._decoder.close()

    def _read_inside(self, piece: str) -> None:
        assert self._decoder is not None
        piece, self._half = self._half + piece, ""
        inside = _INSIDE.match(piece)
        assert inside is not None
        self._decoder.feed(inside[0])
        following = piece[inside.end() :]
        if following.startswith('"'):
            self._state = "over"
        else:
            self._half = following
