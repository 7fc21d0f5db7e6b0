"""Readers of tool calls with an XML element per argument: Qwen3-Coder, GLM 4.5, MiniMax M2, DeepSeek V3.2 and
MiniMax M3, whose elements are nested. The schema says which unquoted values are strings, which are streamed;
others are JSON when complete.
"""

import html
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from server.model_formats.model_format import PromptTool
from server.model_formats.output_grammar import argument_schemas as schemas
from server.model_formats.output_grammar import unquoted_strings
from server.model_formats.output_grammar.grammar_builder import GrammarBuilder, free_input
from server.model_formats.text_scanner import MAX_BUFFERED, SPACE, Reader, Scanner, TextSink, stop_at
from server.model_formats.tool_calls.json_reader import copy_json, escaped
from server.model_formats.tool_calls.python_calls import MAX_SCHEMAS, json_of_literal, may_be_other
from server.model_formats.tool_calls.tool_call_format import MAX_NAME, ToolCallEmitter, ToolCallFormat

_WORDS = {"true": "true", "false": "false", "null": "null", "none": "null"}
_IN_QUOTES = re.compile(r'[^"<>\ud800-\udfff]')
_DIGIT = re.compile(r"[0-9]")
_LETTER = re.compile(r"[a-z]")
_IN_WORD = re.compile(r"[\w.:/-]")
_IN_TAG = re.compile(r"[^<>\n\ud800-\udfff]")
_IN_NESTED_TAG = re.compile(r"[^<>/\n\ud800-\udfff]")
_MAX_DEPTH = 16


@dataclass(frozen=True, eq=False, kw_only=True)
class ElementCalls(ToolCallFormat):
    """An element for the call and one for each argument, which ends the name if no text does."""

    argument: tuple[str, str, str]
    """The texts before an argument's name, between that and the value, where a line break stands for any
    white space, and after the value.
    """
    before_kind: str = ""
    """The text that may stand between the opener and the call, from `openers[1]` on."""
    after_recipient: str = ""
    """The text after the name where the opener announces that, which is repeated in the call."""
    after_string_key: str = ""
    """`argument[1]` of string values, in families that mark them; `after_plain_key` if a model does not."""
    after_plain_key: str = ""
    string_end: str = ""
    """The text after a string so marked, before `argument[2]`; other strings are written without mark."""
    after_number: str = ""
    """The text after the call's number, in families that write one after `call[1]`."""
    after_type: str = ""
    """The text after an argument's type, in families that write it after `argument[1]`, and escape quotes."""
    between: str = "\n"
    """The text before each argument and the call's end, as a grammar writes it; any white space is read."""
    json_begin: str = ""
    json_end: str = ""
    """The texts around all arguments as one JSON object, in families that may write them so."""
    lines: bool = False
    """Values are surrounded by line breaks, which are not part of them."""
    per_property: ClassVar[bool] = True
    call_opens: ClassVar[bool] = True

    @property
    def inner_markup(self) -> tuple[str, ...]:
        return (self.argument[0], self.argument[1], self.after_string_key, self.call[2])

    @property
    def _call_begin(self) -> str:
        return "" if self.after_recipient else self.call[0]

    @property
    def _call_end(self) -> str:
        return ""

    @property
    def _in_name(self) -> re.Pattern[str]:
        return _IN_QUOTES if self.call[0].endswith('"') else _IN_TAG

    def read(self, emitter: ToolCallEmitter, opener: str) -> Reader[None]:
        scanner = emitter.scanner
        if self.after_recipient:
            yield from scanner.take_while(_IN_WORD, MAX_NAME)
            if not (yield from scanner.accept(self.after_recipient)):
                return
        if not opener.endswith(self.call[0]):
            yield from scanner.skip_space()
            if self.before_kind:
                yield from scanner.accept(self.before_kind, self.before_kind.removeprefix(opener))
                yield from scanner.skip_space()
            if self.call[0] and not (yield from scanner.accept(self.call[0])):
                return
        name = (yield from scanner.take_while(self._in_name, MAX_NAME)).strip()
        ended = yield from self._end_name(scanner)
        tool = emitter.tools.resolve(name)
        if tool is None or not ended or not (yield from self._goes_on(scanner)):
            return
        emitter.start(tool)
        if (yield from self._arguments(scanner, emitter.add_arguments, tool)):
            emitter.end()

    def _arguments(self, scanner: Scanner, sink: TextSink, tool: PromptTool) -> Reader[bool]:
        """Reads the arguments and the end of the call as a JSON object; False if truncated."""
        properties, others = schemas.members_of(schemas.schema_of(tool))
        if self.json_begin and (yield from scanner.accept(self.json_begin)):
            whole = yield from copy_json(scanner, sink)
            yield from scanner.accept(self.json_end)
            return whole and bool((yield from scanner.accept(self.call[2])))
        before = "{"
        while True:
            yield from scanner.skip_space()
            scanner.mark()
            if not (yield from scanner.accept(self.argument[0])):
                break
            argument = (yield from scanner.take_while(self._in_name, MAX_NAME)).strip()
            types = yield from self._end_key(scanner, schemas.types_of(properties.get(argument, others)))
            if types is None:
                scanner.drop_half_of(*self.inner_markup)
                if argument and not (yield from scanner.peek()):
                    sink(f"{before}{json.dumps(argument, ensure_ascii=False)[:-1]}")
                return False
            argument = html.unescape(argument) if self.after_type else argument
            sink(f"{before}{json.dumps(argument, ensure_ascii=False)}: ")
            before = ", "
            if not (yield from self._read_value(scanner, sink, types)):
                return False
        if not (yield from scanner.accept(self.call[2])):
            return False
        sink("{}" if before == "{" else "}")
        return True

    def _read_value(self, scanner: Scanner, sink: TextSink, types: frozenset[str]) -> Reader[bool]:
        """Reads a value of these types and its end as JSON; False if truncated."""
        string_end = self.string_end if types is _STRING else ""
        value = Value(sink, types, self.markup.clean, trims=self.lines)
        if types and "string" not in types:
            yield from scanner.copy_run(SPACE, value.add)
            yield from copy_json(scanner, value.add)  # nested JSON may contain `after_value`
        stops = stop_at(string_end or self.argument[2])
        end = yield from scanner.copy_until(stops, value.add, drops_half=True)
        value.close(whole=bool(end))
        if end and string_end:
            scanner.mark()
            yield from scanner.skip_space()
            return bool((yield from scanner.accept(self.argument[2])))
        return bool(end)

    def _end_name(self, scanner: Scanner) -> Reader[bool]:
        if self.call[1] and not (yield from scanner.accept(self.call[1])):
            return False
        if self.after_number:
            yield from scanner.take_while(_DIGIT, 9)
        return not self.after_number or bool((yield from scanner.accept(self.after_number)))

    def _goes_on(self, scanner: Scanner) -> Reader[bool]:
        """Whether an argument or the end of the call comes next; otherwise its beginning is prose."""
        yield from scanner.skip_space()
        begins = (self.call[2], self.argument[0], *((self.json_begin,) if self.json_begin else ()))
        following = yield from scanner.accept(*begins)
        scanner.unread(len(following))
        return bool(following)

    def _end_key(self, scanner: Scanner, types: frozenset[str]) -> Reader[frozenset[str] | None]:
        """Reads up to the value; returns its possible types, None, or `_STRING` itself if that is marked."""
        if self.after_type:
            if not (yield from scanner.accept(self.argument[1])):
                return None
            kind = yield from scanner.take_while(_LETTER, 9)
            if not (yield from scanner.accept(self.after_type)):
                return None
            return frozenset({kind}) if kind == "string" else types - _STRING
        if self.after_string_key and (yield from scanner.accept(self.after_string_key)):
            return _STRING
        if self.after_plain_key:
            if (yield from scanner.accept(self.argument[1])):
                return types - _STRING
            return types if (yield from scanner.accept(self.after_plain_key)) else None
        for number, part in enumerate(self.argument[1].split("\n")):
            if number:
                yield from scanner.skip_space()
            if not (yield from scanner.accept(part)):
                return None
        return types

    def call_grammar(self, lark: GrammarBuilder, name: str, tool: PromptTool) -> str:
        schema = schemas.schema_of(tool)
        properties = schemas.properties_of(schema)
        required = schemas.required_of(schema) if tool.strict or tool.kind == "custom" else frozenset()
        parts = [self._name_grammar(lark, name)]
        for key, inner in properties.items():
            element = self._element(lark, tool, key, inner)
            parts.append(element if key in required else f"({element})?")
        if not properties and (schemas.allows_additional(schema) or not tool.strict):
            element = self._element(lark, tool, None, schemas.additional_of(schema))
            parts.append(lark.shared_rule("others", f"({element}){schemas.repeated(schema)}"))
        return " ".join([*parts, lark.literal(self.between + self.call[2])])

    def _name_grammar(self, lark: GrammarBuilder, name: str) -> str:
        again = f"{name}{self.after_recipient}\n{self.call[0]}" if self.after_recipient else ""
        begin = lark.literal(again + name + self.call[1])
        return f"{begin} /[0-9]{{1,3}}/ {lark.literal(self.after_number)}" if self.after_number else begin

    def _element(
        self, lark: GrammarBuilder, tool: PromptTool, key: str | None, schema: Mapping[str, Any]
    ) -> str:
        """The expression of one argument with the line break before it; without `key`, of any name."""
        if tool.kind == "custom" and (custom := free_input(tool)):
            end = lark.literal(self.string_end + self._value_end())
            return f"{self._before(lark, key, 'string')} {custom} {end}"
        if not tool.strict:
            schema = {"type": sorted(types)} if (types := schemas.types_of(schema)) else {}
        if not self.after_string_key and unquoted_strings.allows_anything(schema):
            return f"{self._before(lark, key, 'string')} {lark.until(self.argument[2])}"
        types = schemas.types_of(schema) or schemas.ALL_TYPES
        others = types - _STRING
        strings = unquoted_strings.strings_of(schema) if "string" in types else None
        ways = []
        if strings is not None and self.after_string_key:
            end, banned = self.string_end + self._value_end(), self.string_end or self.argument[2]
            text = lark.terminated_string(strings, end, banned)
            ways.append(f"{self._before(lark, key, 'string')} {text}")
        if strings is not None and (self.string_end or not self.after_string_key):
            if self.string_end:
                strings = f"({strings}) & /[^<&\\n]*/"
            if others:
                strings, others = unquoted_strings.distinguish_strings(strings, others, schema)
            text = lark.terminated_string(strings, self._value_end(), self.argument[2])
            ways.append(f"{self._before(lark, key, '')} {text}")
        if others or not ways:
            for kind in sorted(others) if self.after_type else [""]:
                own = frozenset({kind}) if kind else others
                value = lark.json({**schema, "type": sorted(own)} if own < types else schema)
                ways.append(f"{self._before(lark, key, kind)} {value} {lark.literal(self._value_end())}")
        return f"({' | '.join(ways)})"

    def _before(self, lark: GrammarBuilder, key: str | None, kind: str) -> str:
        """The text before a value, with its type if that is marked."""
        if key is None:
            start, end = lark.literal(self.between + self.argument[0]), lark.literal(self._end_of_key(kind))
            return f"{start} {lark.name()} {end}"
        return lark.literal(f"{self.between}{self.argument[0]}{key}{self._end_of_key(kind)}")

    def _end_of_key(self, kind: str) -> str:
        """The text between an argument's name and its value, including the value's line break."""
        if self.after_type:
            return f"{self.argument[1]}{'number' if kind == 'integer' else kind}{self.after_type}"
        marked = self.after_string_key if kind == "string" else ""
        return (marked or self.argument[1].replace("\n", self.between)) + "\n" * self.lines

    def _value_end(self) -> str:
        return "\n" * self.lines + self.argument[2]


_STRING = frozenset({"string"})


class Value:
    def __init__(
        self, sink: TextSink, types: frozenset[str], clean: Callable[[str], str], *, trims: bool
    ) -> None:
        """`clean` removes signs of special tokens."""
        self._give = sink
        self._clean = clean
        self._types = types
        self._trims = trims
        self._mode = "string" if types == _STRING else "buffered"
        """`buffered` until complete or too long; then `string` or `raw` JSON."""
        self._line_break = ""
        self._pieces: list[str] = []
        self._size = 0
        self._at_head = True
        self._quoted = False

    def add(self, piece: str) -> None:
        piece = self._clean(piece)
        if self._mode == "buffered":
            self._pieces.append(piece)
            self._size += len(piece)
            if self._size <= MAX_BUFFERED:
                return
            piece = "".join(self._pieces)
            nested = piece.lstrip()[:1] in ("{", "[") and "string" not in self._types
            self._mode = "raw" if nested else "string"
        text = self._line_break + piece
        ends_line = self._trims and text.endswith("\n")
        self._line_break = "\n" if ends_line else ""
        self._emit(text[:-1] if ends_line else text)

    def close(self, *, whole: bool) -> None:
        if self._mode == "buffered":
            text = "".join(self._pieces)
            if self._trims:
                text = text.removeprefix("\n").removesuffix("\n")
            self._give(as_json(text, self._types) if whole else self._truncated(text))
            return
        # A buffered line break is not part of the value, or the value is truncated after it.
        if whole and self._mode == "string":
            self._give('"' if self._quoted else '""')

    def _truncated(self, text: str) -> str:
        """The JSON of a truncated value; empty if its type is ambiguous."""
        if self._types and "string" not in self._types:
            return text
        return "" if may_be_other(text) else f'"{escaped(text)}'

    def _emit(self, text: str) -> None:
        if self._at_head and text:
            text = text.removeprefix("\n") if self._trims else text
            self._at_head = False
        if text and self._mode == "raw":
            self._give(text)
        elif text:
            self._give(escaped(text) if self._quoted else f'"{escaped(text)}')
            self._quoted = True


def as_json(text: str, types: frozenset[str]) -> str:
    """The text as JSON of one of these types, in which some templates write Python, else as a JSON string."""
    word = _WORDS.get(text.strip().lower())
    if word and (("null" if word == "null" else "boolean") in types or not types):
        return word
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        nested = types and "string" not in types and text.lstrip()[:1] in ("[", "{")
        literal = json_of_literal(text) if nested else None
        return literal or f'"{escaped(text)}"'
    own = schemas.type_name(value)
    fits = own in types or (own == "integer" and "number" in types) or not types
    is_value = "string" not in types or (fits and own != "string")
    return text.strip() if is_value else f'"{escaped(text)}"'


def _refuse(name: str) -> None:
    raise ValueError(name)


class Shape:
    """A schema, as far as it says how values are read; its subschemas are looked up once."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema

    @cached_property
    def types(self) -> frozenset[str]:
        return schemas.types_of(self._schema)

    @cached_property
    def _members(self) -> "tuple[dict[str, Shape], Shape]":
        members, others = schemas.members_of(self._schema)
        return {name: Shape(inner) for name, inner in members.items()}, Shape(others)

    def member(self, name: str) -> "Shape":
        members, others = self._members
        return members.get(name, others)

    def has_item(self) -> bool:
        return "item" in self._members[0]

    @cached_property
    def items(self) -> "Shape":
        return Shape(items_of(self._schema))


def items_of(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of an array's items; empty for any."""
    for each in schemas.objects_of(schema):
        if isinstance(items := each.get("items"), Mapping):
            own: Mapping[str, Any] = schemas.subschema(each, items)
            return own
    return {}


@dataclass(frozen=True, eq=False, kw_only=True)
class NestedElements(ElementCalls):
    """An element for each value, in that of its object or, as `<item>`, list; tags begin with `mark`."""

    mark: str
    between: str = ""

    def _arguments(self, scanner: Scanner, sink: TextSink, tool: PromptTool) -> Reader[bool]:
        return (yield from self._members(scanner, sink, Shape(schemas.schema_of(tool)), self.call[2], 0))

    def _members(
        self, scanner: Scanner, sink: TextSink, shape: Shape, end: str, depth: int, begun: str | None = None
    ) -> Reader[bool]:
        """Reads elements up to `end` as a JSON object; of a first one, the tag or name has `begun`."""
        before = "{"
        while True:
            if begun is None:
                yield from scanner.skip_space()
                if (yield from scanner.accept(end)):
                    sink("{}" if before == "{" else "}")
                    return True
                scanner.drop_half_of(end)
                scanner.mark()
                if (yield from scanner.accept(f"{self.mark}</")):
                    scanner.unread(len(self.mark) + 2)
                    return False
                if not (yield from scanner.accept(self.argument[0])):
                    return False
            name = begun or (yield from scanner.take_while(_IN_NESTED_TAG, MAX_NAME))
            if not name or not (begun or (yield from scanner.accept(">"))):
                if name and not (yield from scanner.peek()):
                    sink(f"{before}{json.dumps(name, ensure_ascii=False)[:-1]}")
                return False
            begun = None
            sink(f"{before}{json.dumps(name, ensure_ascii=False)}: ")
            before = ", "
            if not (yield from self._nested(scanner, sink, shape.member(name), self.end_of(name), depth + 1)):
                return False

    def _nested(self, scanner: Scanner, sink: TextSink, shape: Shape, end: str, depth: int) -> Reader[bool]:
        """Reads a value up to `end`: elements, if the schema allows some, else text."""
        types = shape.types
        if depth > _MAX_DEPTH:
            return False
        if types and "string" not in types:
            yield from scanner.skip_space()
        if (yield from scanner.accept(end)):
            empty = {frozenset({"object"}): "{}", frozenset({"array"}): "[]"}
            sink(empty.get(types, '""'))
            return True
        if not types or types & {"object", "array"}:
            scanner.mark()
            opened = yield from scanner.accept(f"{self.argument[0]}item>", self.argument[0])
            listed = not types or "array" in types
            if opened and (not listed or opened == self.argument[0] or shape.has_item()):
                begun = "item" if opened != self.argument[0] else ""
                return (yield from self._members(scanner, sink, shape, end, depth, begun))
            if opened:
                return (yield from self._items(scanner, sink, shape.items, end, depth))
            scanner.unmark()
        value = Value(sink, types, self.markup.restore, trims=False)
        if types and "string" not in types:
            yield from copy_json(scanner, value.add)
        ended = yield from scanner.copy_until(stop_at(end), value.add, drops_half=True)
        value.close(whole=bool(ended))
        return bool(ended)

    def _items(self, scanner: Scanner, sink: TextSink, shape: Shape, end: str, depth: int) -> Reader[bool]:
        """Reads a list up to `end`, whose first item has begun."""
        before = "["
        while True:
            sink(before)
            before = ", "
            if not (yield from self._nested(scanner, sink, shape, self.end_of("item"), depth + 1)):
                return False
            yield from scanner.skip_space()
            if (yield from scanner.accept(end)):
                sink("]")
                return True
            if not (yield from scanner.accept(f"{self.argument[0]}item>")):
                return False

    def call_grammar(self, lark: GrammarBuilder, name: str, tool: PromptTool) -> str:
        """A call with declared arguments only: no grammar can repeat a name that it does not know."""
        members = _NestedGrammar(self, lark, tool).members(schemas.schema_of(tool), 0)
        return f"{lark.literal(name + self.call[1])} {members} {lark.literal(self.call[2])}"

    def end_of(self, name: str) -> str:
        return f"{self.mark}</{name}>"


class _NestedGrammar:
    """The expressions of one tool's arguments; of a tool that is not strict, of their types."""

    def __init__(self, calls: NestedElements, lark: GrammarBuilder, tool: PromptTool) -> None:
        self._calls = calls
        self._lark = lark
        self._custom = free_input(tool) if tool.kind == "custom" else None
        self._strict = tool.strict or tool.kind == "custom"
        self._budget = schemas.SchemaBudget(MAX_SCHEMAS)

    def members(self, schema: Mapping[str, Any], depth: int) -> str:
        required = schemas.required_of(schema) if self._strict else frozenset()
        parts = []
        for key, inner in schemas.properties_of(schema).items():
            end = self._calls.end_of(key)
            if self._custom:
                value = f"{self._custom} {self._lark.literal(end)}"
            else:
                value = self._value(inner, end, depth)
            part = f"{self._lark.literal(f'{self._calls.argument[0]}{key}>')} {value}"
            parts.append(part if key in required else f"({part})?")
        return " ".join(parts) or '""'

    def _value(self, schema: Mapping[str, Any], end: str, depth: int) -> str:
        """A value and its `end`. Objects without known properties and what is too deep are JSON."""
        known = schemas.types_of(schema)
        if not known and (not self._strict or unquoted_strings.allows_anything(schema)):
            return self._text("/(.|\\n)*/", end)
        rest = set(known or schemas.ALL_TYPES)
        ways = list(self._nested(schema, rest, end, depth)) if self._budget.spend(1) else []
        own = schema if self._strict else {"type": sorted(known)}
        if "string" in rest:
            rest.discard("string")
            if (strings := unquoted_strings.strings_of({**own, "type": "string"})) is not None:
                strings, others = unquoted_strings.distinguish_strings(strings, frozenset(rest), own)
                rest = set(others)
                ways.append(self._text(strings, end))
        if rest:
            ways.append(f"{self._lark.json({**own, 'type': sorted(rest)})} {self._lark.literal(end)}")
        return f"({' | '.join(ways)})"

    def _nested(self, schema: Mapping[str, Any], types: set[str], end: str, depth: int) -> Iterator[str]:
        """The ways to write a value as elements; takes their types from `types`."""
        if depth >= _MAX_DEPTH // 2:
            return
        if "object" in types:
            objects = [each for each in schemas.objects_of(schema) if schemas.properties_of(each)]
            for each in objects:
                yield f"{self.members(each, depth + 1)} {self._lark.literal(end)}"
            types -= {"object"} if objects else set()
        if "array" in types:
            types.discard("array")
            item = self._value(items_of(schema), self._calls.end_of("item"), depth + 1)
            element = f"({self._lark.literal(f'{self._calls.argument[0]}item>')} {item})"
            items = f"{element}{_count(schema) if self._strict else '{0,}'}"
            yield f"{'' if items.endswith('{0,0}') else items} {self._lark.literal(end)}"

    def _text(self, strings: str, end: str) -> str:
        return self._lark.terminated_string(strings, end, self._calls.mark)


def _count(schema: Mapping[str, Any]) -> str:
    """The Lark repetition for `minItems` and `maxItems`."""
    low, high = (schema.get(key) for key in ("minItems", "maxItems"))
    least = min(low, schemas.MAX_COUNT) if isinstance(low, int) else 0
    return f"{{{least},{max(high, least) if isinstance(high, int) and high <= schemas.MAX_COUNT else ''}}}"
