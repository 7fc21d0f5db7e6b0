"""Streaming readers of JSON values, strings and custom tools' inputs from a `Scanner`, in linear time. Text
is copied unchanged, only incomplete escapes are buffered, and a sign ends every value.
"""

import json
import re
from collections.abc import Callable, Iterator

from server.model_formats.text_scanner import SPACE, Reader, Scanner, TextSink

_OUTSIDE = re.compile(r"[\s\w:,.+\-]+")
_IN_STRING = {quote: re.compile(rf"[^{quote}\\\ud800-\udfff]+") for quote in "'\""}
_SCALAR = re.compile(r"[\w.+\-]+")
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?", re.ASCII)
WORDS = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}
_VALUE = '"{[-0123456789tfnTFN'
"""Characters that a value may begin with; words are those of JSON and of Python."""
_KEY = '"}'
_ESCAPES = '"\\/bfnrtu'
_CONTROL = re.compile(r"[\x00-\x1f]")
_ONE = re.compile(r"[^\ud800-\udfff]")
_HEX = "[0-9a-fA-F]"
_UNIT = re.compile(rf"[^\\]+|\\u({_HEX}{{4}})|\\(?!u)(.)|\\u(?!{_HEX}{{0,3}}\Z)", re.DOTALL)
_PYTHON_UNIT = re.compile(
    rf"[^\\]+|\\[xuU]((?<=x){_HEX}{{2}}|(?<=u){_HEX}{{4}}|(?<=U){_HEX}{{8}})|\\(?![xuU])(.)"
    rf"|\\[xuU](?!(?:(?<=x){_HEX}?|(?<=u){_HEX}{{0,3}}|(?<=U){_HEX}{{0,7}})\Z)",
    re.DOTALL,
)
_CLOSING = {"{": "}", "[": "]"}
_SHORT = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_PYTHON_SHORT = {**_SHORT, "a": "\a", "v": "\v", "0": "\0", "\n": "", **{mark: mark for mark in "'\"\\/"}}
_CUSTOM_START = '{"input":"'
_CUSTOM_HEAD = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_MAX_HEAD = 64
_INSIDE = re.compile(r'(?:[^"\\]|\\.)*', re.DOTALL)


def escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def copy_json(scanner: Scanner, sink: TextSink) -> Reader[bool]:
    """Copies a JSON value to `sink`; False if it is truncated or malformed."""
    first = yield from scanner.peek()
    if first == '"':
        sink(first)
        scanner.skip()
        return (yield from _copy_string(scanner, sink))
    if first and first in "{[":
        return (yield from _copy_nested(scanner, sink))
    copied: list[str] = []
    more = yield from scanner.copy_run(_SCALAR, copied.append)
    sink("".join(copied))
    return more and bool(copied)


def copy_string(scanner: Scanner, sink: TextSink, python_quote: str = "") -> Reader[bool]:
    """Decodes a JSON string, or Python's with `python_quote`, after its first quote; False if truncated."""
    decoder = StringDecoder(sink, python=bool(python_quote))
    quote = python_quote or '"'

    def add(piece: str) -> None:
        if piece != quote:
            decoder.feed(piece)

    whole = yield from _copy_string(scanner, add, quote)
    decoder.close()
    return whole


def _copy_string(scanner: Scanner, sink: TextSink, quote: str = '"') -> Reader[bool]:
    """Copies the rest of a string including its last quote."""
    while True:
        if not (yield from scanner.copy_run(_IN_STRING[quote], sink)):
            return False
        character = yield from scanner.peek()
        if character not in (quote, "\\"):
            return False
        scanner.skip()
        if character == quote:
            sink(character)
            return True
        following = yield from scanner.peek()
        if not following or not _ONE.match(following):
            return False
        scanner.skip()
        sink(character + following)


def _copy_nested(scanner: Scanner, sink: TextSink) -> Reader[bool]:
    depth = 0
    while True:
        if not (yield from scanner.copy_run(_OUTSIDE, sink)):
            return False
        character = yield from scanner.peek()
        if character not in '{}[]"':
            return False
        scanner.skip()
        sink(character)
        if character == '"':
            if not (yield from _copy_string(scanner, sink)):
                return False
        else:
            depth += 1 if character in "{[" else -1
            if depth == 0:
                return True


class ArgumentsCopy:
    """Copies a JSON value, unlike `copy_json` only as far as it is well-formed. Python's words become JSON's,
    line breaks and wrong backslashes in strings are escaped, and a comma behind the last member is left out.
    """

    def __init__(self, scanner: Scanner, start: Callable[[], None], sink: TextSink) -> None:
        """`start` is called before `sink`, once a member has a value: until then all may still be text."""
        self._scanner = scanner
        self._start = start
        self._sink = sink
        self._begun = False
        self._held: list[str] = []
        """The text before the first value; white space and a comma before another member."""
        self._closing: list[str] = []

    def read(self) -> Reader[bool]:
        """False if the value is truncated or malformed; the fault is not consumed, or marked."""
        expected = _VALUE
        while (yield from self._scanner.copy_run(SPACE, self._held.append)):
            character = yield from self._scanner.peek()
            if character not in expected or not (yield from self._copy(character, is_key=expected == _KEY)):
                break
            if character == ":":
                expected = _VALUE
            elif character in "{[,":
                expected = _KEY if self._closing[-1] == "}" else _VALUE + "]"
            elif not self._closing:
                return True
            else:
                expected = ":" if character == '"' and expected == _KEY else "," + self._closing[-1]
        if self._begun or not (yield from self._scanner.peek()):
            self._write("", begins=True)
        return False

    def _copy(self, character: str, *, is_key: bool) -> Reader[bool]:
        begins = character in "]}" or not (is_key or character == ":")
        if character in "{[":
            begins = bool(self._closing)
            self._closing.append(_CLOSING[character])
        elif character in "]}":
            self._closing.pop()
            self._held = ["".join(self._held).replace(",", "")]
        if character not in '"{[]},:':
            return (yield from self._copy_word())
        self._scanner.skip()
        if character == ",":
            self._held.append(character)
            return True
        self._write(character, begins=begins)
        return character != '"' or (yield from _copy_string(self._scanner, self._write_string))

    def _copy_word(self) -> Reader[bool]:
        if self._begun:
            self._write("")
        marks = not self._scanner.marked
        if marks:
            self._scanner.mark()
        pieces: list[str] = []
        more = yield from self._scanner.copy_run(_SCALAR, pieces.append)
        word = "".join(pieces)
        scalar = WORDS.get(word, word if NUMBER.fullmatch(word) else "")
        if more and not scalar:
            return False
        if marks:
            self._scanner.unmark()
        self._write(scalar or word, begins=True)
        return more

    def _write_string(self, piece: str) -> None:
        if piece[0] == "\\":
            piece = piece if piece[1] in _ESCAPES else f"\\{piece}"
        if not piece.isprintable():
            piece = _CONTROL.sub(lambda control: escaped(control[0]), piece)
        if self._begun and not self._held:
            self._sink(piece)
        else:
            self._write(piece)

    def _write(self, text: str, *, begins: bool = False) -> None:
        self._held.append(text)
        if begins and not self._begun:
            self._begun = True
            self._start()
        if self._begun and (text := "".join(self._held)):
            self._sink(text)
            self._held = []


def read_members(
    scanner: Scanner,
    sink: TextSink,
    brackets: str,
    member: Callable[[str], Reader[bool]],
    *,
    needs_comma: bool = True,
) -> Reader[bool]:
    """Reads members to the second of the `brackets`; writes a JSON object if the first is `{`, else a list.

    `member` writes the comma that it is passed, then the member. False if truncated or malformed; what was
    read and not written is marked.
    """
    begin, end = "{}" if brackets[0] == "{" else "[]"
    closing = brackets[1]
    sink(begin)
    comma = ""
    while True:
        yield from scanner.skip_space()
        if (yield from scanner.accept(closing)):
            sink(end)
            return True
        scanner.mark()
        if not (yield from member(comma)):
            return False
        comma = ", "
        yield from scanner.skip_space()
        separated = yield from scanner.accept(",")
        if needs_comma and not separated and (yield from scanner.peek()) != closing:
            return False


class StringDecoder:
    """Decodes the content of a JSON string, or a Python one; an incomplete escape is buffered."""

    def __init__(self, sink: TextSink, *, python: bool = False) -> None:
        self._sink = sink
        self._unit = _PYTHON_UNIT if python else _UNIT
        self._short = _PYTHON_SHORT if python else _SHORT
        self._unknown = "\\" if python else ""
        """The text that replaces the backslash of an unknown escape."""
        self._pending = ""

    def feed(self, piece: str) -> None:
        if "\\" not in piece and not self._pending:
            if piece:
                self._sink(piece)
            return
        text = self._pending + piece
        self._pending = ""
        decoded = "".join(self._units(text))
        if decoded:
            self._sink(decoded)

    def close(self) -> None:
        """Passes on a truncated escape unchanged, and half a surrogate pair as U+FFFD."""
        if self._pending:
            text, self._pending = self._pending, ""
            self._sink("\ufffd" if self._unit.match(text) else text)

    def _units(self, text: str) -> Iterator[str]:
        at = 0
        while at < len(text):
            unit = self._unit.match(text, at)
            if unit is None:
                self._pending = text[at:]
                return
            if unit[1] is None:
                yield self._short.get(unit[2], self._unknown + unit[2]) if unit[2] else unit[0]
                at = unit.end()
                continue
            code = int(unit[1], 16)
            if 0xD800 <= code < 0xDC00:
                low = self._unit.match(text, unit.end())
                if low is None and "\\u".startswith(text[unit.end() :][:2]):
                    self._pending = text[at:]
                    return
                if low and low[1] and 0xDC00 <= int(low[1], 16) < 0xE000:
                    yield chr(0x10000 + ((code - 0xD800) << 10) + int(low[1], 16) - 0xDC00)
                    at = low.end()
                    continue
            yield "\ufffd" if 0xD800 <= code < 0xE000 or code > 0x10FFFF else chr(code)
            at = unit.end()


class CustomInput:
    """Extracts a custom tool's input from `{"input": "..."}`; other JSON is passed on unchanged."""

    def __init__(self, sink: TextSink) -> None:
        self._sink = sink
        self._decoder: StringDecoder | None = None
        self._head = self._half = ""
        self._others: list[str] = []
        self._state = "head"

    def feed(self, piece: str) -> None:
        if self._state == "head":
            self._head += piece
            head = _CUSTOM_HEAD.match(self._head)
            if head:
                self._state, self._decoder = "inside", StringDecoder(self._sink)
                piece, self._head = self._head[head.end() :], ""
            elif len(self._head) > _MAX_HEAD or not _CUSTOM_START.startswith("".join(self._head.split())):
                self._state = "plain"
                piece, self._head = self._head, ""
        if self._state == "plain":
            self._sink(piece)
        elif self._state == "inside":
            self._read_inside(piece)
        elif self._state == "over":
            self._others.append(piece)

    def others(self) -> str:
        """The JSON text of the members after `input`."""
        return "".join(self._others).strip(", \n").removesuffix("}").strip()

    def close(self) -> None:
        if self._head:
            self._sink(self._head)
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
            self._others = [following[1:]]
        else:
            self._half = following
