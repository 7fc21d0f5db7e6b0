"""Pythonic tool calls, `[get_weather(city="Paris", days=2), ...]`: Llama 3.2 and 4 and others.

Only literals are parsed, nothing is evaluated. Arguments are converted to JSON as they arrive.
"""

import re

from server.model_formats.grammar.lark_rules import GrammarBuilder
from server.model_formats.interface import Tool
from server.model_formats.text_stream.scanner import Reader, Scanner, TextSink
from server.model_formats.text_stream.special_tokens import Markup
from server.model_formats.tool_calls.interface import MAX_NAME, ToolCallEmitter, ToolCallFormat
from server.model_formats.tool_calls.streamed_json import escaped
from server.model_formats.tool_names import (
    additional_of,
    allows_additional,
    enforced_schema,
    properties_of,
    repeated,
    required_of,
    schema_of,
)

_NAME = re.compile(r"[\w.\-]")
_WORD = re.compile(r"[\w.+\-]")
_HEX = re.compile(r"[0-9a-fA-F]")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_PLAIN = {quote: re.compile(rf"[^{quote}\\\ud800-\udfff]+") for quote in "'\""}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0", "\n": ""}
_DIGITS = {"x": 2, "u": 4, "U": 8}
_CLOSING = {"[": "]", "(": ")", "{": "}"}
_MAX_DEPTH = 32


class Pythonic(ToolCallFormat):
    """A list of calls, alone or between `<|python_start|>` and `<|python_end|>`."""

    name = "pythonic"
    bare_starts = "["
    per_property = True

    def __init__(self, markup: Markup) -> None:
        super().__init__(markup)
        self.openers = self.sign("<|python_start|>")
        self.closers = self.sign("<|python_end|>")
        self.prefix, self.separator, self.suffix = "[", ", ", "]"

    def read(self, emitter: ToolCallEmitter, opener: str) -> Reader[None]:
        scanner = emitter.scanner
        yield from scanner.skip_space()
        if not (yield from scanner.accept("[")):
            return
        while True:
            yield from scanner.skip_space()
            name = yield from scanner.take_while(_NAME, MAX_NAME)
            known = emitter.tools.find(name)
            tool = known or emitter.tools.resolve(name)
            if tool is None or not (yield from scanner.accept("(")):
                return
            if known is None and not opener and not (yield from _has_named_arguments(scanner)):
                return
            emitter.start(tool)
            if not (yield from _arguments(scanner, emitter.add_arguments)):
                return
            emitter.end()
            scanner.mark()
            yield from scanner.skip_space()
            if not (yield from scanner.accept(",")):
                yield from scanner.accept("]")
                scanner.unmark()
                return

    def call_grammar(self, lark: GrammarBuilder, name: str, tool: Tool) -> str:
        if tool.kind == "custom":
            value = lark.string_input(tool)
            return f"{lark.literal(f'{name}(input=')} {value} {lark.literal(')')}"
        schema = schema_of(tool)
        properties = properties_of(schema)
        begin, end = lark.literal(f"{name}("), lark.literal(")")
        if not properties and allows_additional(schema):
            pair = f"{lark.name()} {lark.literal('=')} {lark.json(additional_of(schema))}"
            pairs_more = f"{pair} ({lark.literal(', ')} {pair}){repeated(schema, after_first=True)}"
            others = lark.shared_rule("others", f"({pairs_more}){'' if schema.get('minProperties') else '?'}")
            return f"{begin} {others} {end}"
        required = required_of(enforced_schema(tool)) if tool.strict else frozenset()
        pairs = [
            (f"{lark.literal(f'{key}=')} {lark.json(inner)}", key in required)
            for key, inner in properties.items()
        ]
        return f"{begin} {lark.separated(pairs, ', ')} {end}"


def _has_named_arguments(scanner: Scanner) -> Reader[bool]:
    """Whether named arguments or an empty argument list follow; otherwise it is text. Consumes nothing."""
    start = scanner.offset
    name = yield from scanner.take_while(_NAME, MAX_NAME)
    ended = yield from scanner.accept("=" if name else ")")
    called = bool(ended) and (bool(name) or (yield from scanner.peek()) in ("]", ","))
    scanner.unread(scanner.offset - start)
    return called


def _arguments(scanner: Scanner, sink: TextSink) -> Reader[bool]:
    """Reads named arguments up to the closing parenthesis and writes them as a JSON object."""
    sink("{")
    before = ""
    while True:
        yield from scanner.skip_space()
        if (yield from scanner.accept(")")):
            sink("}")
            return True
        key = yield from scanner.take_while(_NAME, MAX_NAME)
        yield from scanner.skip_space()
        if not key or not (yield from scanner.accept("=")):
            return False
        sink(f'{before}"{escaped(key)}": ')
        before = ", "
        if not (yield from _literal(scanner, sink, 0)):
            return False
        yield from scanner.skip_space()
        if not (yield from scanner.accept(",")) and (yield from scanner.peek()) != ")":
            return False


def _literal(scanner: Scanner, sink: TextSink, depth: int) -> Reader[bool]:
    """One Python literal as JSON; False for what is none, or not whole."""
    yield from scanner.skip_space()
    first = yield from scanner.peek()
    if not first or depth > _MAX_DEPTH:
        return False
    if first in _PLAIN:
        scanner.skip()
        return (yield from _string(scanner, sink, first))
    if first in _CLOSING:
        scanner.skip()
        return (yield from _collection(scanner, sink, first, depth + 1))
    word = yield from scanner.take_while(_WORD, 512)
    if word in _WORDS:
        sink(_WORDS[word])
    elif _NUMBER.fullmatch(word):
        sink(word)
    else:
        return False
    return True


def _collection(scanner: Scanner, sink: TextSink, opening: str, depth: int) -> Reader[bool]:
    keyed, closing = opening == "{", _CLOSING[opening]
    sink("{" if keyed else "[")
    before = ""
    while True:
        yield from scanner.skip_space()
        if (yield from scanner.accept(closing)):
            sink("}" if keyed else "]")
            return True
        if before and not (yield from scanner.accept(",")):
            return False
        yield from scanner.skip_space()
        if before and (yield from scanner.accept(closing)):
            sink("}" if keyed else "]")
            return True
        sink(before)
        before = ", "
        if keyed:
            quote = yield from scanner.accept('"', "'")
            if not quote or not (yield from _string(scanner, sink, quote)):
                return False
            yield from scanner.skip_space()
            if not (yield from scanner.accept(":")):
                return False
            sink(": ")
        if not (yield from _literal(scanner, sink, depth)):
            return False


def _string(scanner: Scanner, sink: TextSink, quote: str) -> Reader[bool]:
    """The rest of a string, with its escapes turned into JSON's."""
    sink('"')
    high = 0
    """The first half of a character that two escapes spell."""

    def tell(text: str) -> None:
        sink(escaped(text))

    while True:
        if high and (yield from scanner.peek()) != "\\":
            tell("\ufffd")
            high = 0
        if not (yield from scanner.copy_run(_PLAIN[quote], tell)):
            return False
        character = yield from scanner.peek()
        if character == quote:
            scanner.skip()
            sink('"')
            return True
        if character != "\\":
            return False
        scanner.skip()
        code = yield from _escape(scanner)
        if code is None:
            return False
        if high and isinstance(code, int) and 0xDC00 <= code < 0xE000:
            code = chr(0x10000 + ((high - 0xD800) << 10) + code - 0xDC00)
            high = 0
        if high:
            tell("\ufffd")
            high = 0
        if isinstance(code, int) and 0xD800 <= code < 0xDC00:
            high = code
        elif isinstance(code, int):
            tell("\ufffd" if 0xDC00 <= code < 0xE000 or code > 0x10FFFF else chr(code))
        else:
            tell(code)


def _escape(scanner: Scanner) -> Reader[int | str | None]:
    """Reads an escape after its backslash: a code point, or text; None if truncated."""
    kind = yield from scanner.peek()
    if not kind or "\ud800" <= kind <= "\udfff":
        return None
    scanner.skip()
    if kind in _DIGITS:
        digits = yield from scanner.take_while(_HEX, _DIGITS[kind] - 1)
        return int(digits, 16) if len(digits) == _DIGITS[kind] else f"\\{kind}{digits}"
    return _ESCAPES.get(kind, kind if kind in "'\"\\/" else f"\\{kind}")
